// SPDX-License-Identifier: Apache-2.0
// Who may begin another request now: bounds on open requests of a gateway and of a key, and a
// budget of tokens per minute.
#pragma once

#include "launch/serve/api_error.hpp"
#include "launch/serve/api_keys.hpp"
#include "messaging/base/env.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

namespace di::serve {

/// [requests] that may be open.
struct admission_limits {
  std::uint32_t requests = 4'096;     ///< of this gateway
  std::uint32_t requests_per_key = 0; ///< of a key whose grant says nothing; 0: no bound
};

/// Counts open requests; any thread. Must outlive its tickets.
class admission {
public:
  /// An open request; gives its place back when destroyed. Moves.
  class ticket {
  public:
    ticket() = default;
    ticket(ticket&& other) noexcept : home_{other.home_}, key_{std::move(other.key_)} {
      other.home_ = nullptr;
    }
    ticket& operator=(ticket&& other) noexcept;
    ~ticket() { give_back(); }
    /// Counts tokens against the key's budget.
    void spend(std::uint64_t tokens, instant now);

  private:
    friend class admission;
    ticket(admission* home, std::string key) : home_{home}, key_{std::move(key)} {}
    void give_back();
    admission* home_ = nullptr;
    std::string key_;
  };

  explicit admission(admission_limits limits) : limits_{limits} {}
  void set_limits(admission_limits limits);

  /// A place for one more request of this key: or a 503 (this gateway is full) or 429 (the key's
  /// own bound), with a time to come back.
  std::variant<ticket, api_error> enter(const key_grant& who, instant now);

  std::uint32_t open() const;
  /// Requests turned away so far.
  std::uint64_t refused() const;

private:
  struct account {
    std::uint32_t open = 0;
    std::uint32_t per_minute = 0; ///< [tokens]; 0: no budget
    double tokens = 0;            ///< [tokens] left; below 0: spent ahead
    instant filled;
  };
  void leave(const std::string& key);
  void spend(const std::string& key, std::uint64_t tokens, instant now);
  static void refill(account& a, instant now);
  std::optional<api_error> refusal(const account& a, const key_grant& who) const;

  mutable std::mutex guard_;
  admission_limits limits_;
  std::map<std::string, account> accounts_; ///< by grant name; idle ones with a full budget go
  std::uint32_t open_ = 0;
  std::uint64_t refused_ = 0;
};

} // namespace di::serve
