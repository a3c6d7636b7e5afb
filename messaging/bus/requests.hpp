// SPDX-License-Identifier: Apache-2.0
// The two books of a post office: requests of this process that wait for an answer, and requests of
// others that actors here still owe one. Each entry leaves exactly once, so each request is
// answered exactly once.
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace di::bus {

/// A request that this process waits for.
struct pending_request {
  std::uint64_t number = 0;
  address from;
  address to;
  address route;      ///< prefix of the receiving process, empty: this one
  incarnation life{}; ///< of the receiving process, 0: this one
  instant deadline{};
};

/// Thread-safe.
class pending_requests {
public:
  /// True in `earliest` if no other entry is due sooner. @errors limit_exceeded, duplicate
  result<void> add(pending_request r, bool& earliest);
  std::optional<pending_request> take(std::uint64_t number);
  /// Takes only if the answer comes from the life that was asked and goes to who asked.
  std::optional<pending_request> take(std::uint64_t number, incarnation life,
                                      const address& requester);
  std::vector<pending_request> take_due(instant now);
  std::vector<pending_request> take_sent_to(incarnation life);
  std::vector<pending_request> take_routed_by(const address& prefix);
  /// Those that wait for an actor of this process.
  std::vector<pending_request> take_local(const address& to);
  std::optional<instant> next_due() const;
  std::size_t size() const;

private:
  using map = std::unordered_map<std::uint64_t, pending_request>;
  pending_request take_at(map::iterator at);
  template <class Matches>
  std::vector<pending_request> take_where(Matches&& matches);

  mutable std::mutex guard_;
  map by_number_;
  std::set<std::pair<std::int64_t, std::uint64_t>> by_deadline_;
};

/// A request of another process that an actor here has not answered.
struct inbound_request {
  address requester;
  std::uint64_t number = 0;
  address to;
  incarnation life{}; ///< that asked, and alone gets the answer
  instant deadline{};
};

/// Thread-safe.
class inbound_requests {
public:
  /// @errors limit_exceeded, duplicate
  result<void> add(inbound_request r);
  std::optional<inbound_request> take(const address& requester, std::uint64_t number);
  std::vector<inbound_request> take_to(const address& path);
  void drop_life(incarnation life);
  /// Forgets those whose requester has given up by now.
  void drop_due(instant now);
  std::optional<instant> next_due() const;

private:
  using key = std::pair<std::uint64_t, address>;
  struct hash {
    std::size_t operator()(const key& k) const noexcept {
      return std::hash<std::uint64_t>{}(k.first * 0x9e3779b97f4a7c15ull)
             ^ std::hash<std::string>{}(k.second);
    }
  };
  using map = std::unordered_map<key, inbound_request, hash>;
  inbound_request take_at(map::iterator at);

  mutable std::mutex guard_;
  map by_key_;
  std::set<std::pair<std::int64_t, const key*>> by_deadline_;
};

} // namespace di::bus
