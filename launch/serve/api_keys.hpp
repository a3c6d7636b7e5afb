// SPDX-License-Identifier: Apache-2.0
// Who may use a gateway: keys with tenants and limits, from a file that can be read again.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace di::serve {

/// What one key may. 0 in a limit: none of its own.
struct key_grant {
  std::string name;                    ///< in logs; the key itself is never shown
  std::string tenant;                  ///< whose quota and whose cached prefixes
  std::uint32_t requests = 0;          ///< [requests] open at a time
  std::uint32_t choices = 0;           ///< [choices] of one request
  std::uint32_t tokens_per_minute = 0; ///< [tokens] of prompts and answers
  std::int32_t priority = 0;           ///< [-10, 10] that it may ask for at most
};

/// The keys of a file. Immutable.
///
/// ```yaml
/// keys:
///   - {key: sk-example, tenant: alice, requests: 8, tokens_per_minute: 100000}
///   - {sha256: 9f86d0..., name: batch, tenant: bob, choices: 4, priority: 2}
/// ```
class key_table {
public:
  /// @errors bad_config with line and column of each defect
  static result<key_table> parse(std::string_view yaml, std::string_view file);

  /// The grant of a key. Compares digests of the key with those of all grants in constant time.
  const key_grant* find(std::string_view key) const;
  std::size_t size() const noexcept { return grants_.size(); }

private:
  std::vector<std::string> digests_; ///< [keys] sha256, 64 hexadecimal digits
  std::vector<key_grant> grants_;    ///< as digests_
};

/// The current keys of a gateway; any thread.
class api_keys {
public:
  /// Without a file: everybody may, as tenant "".
  api_keys() = default;
  explicit api_keys(std::string file) : file_{std::move(file)} {}

  /// Reads the file; on an error the keys stay as they were. @errors io_error, bad_config
  result<void> reload();
  /// Whether a key is needed.
  bool guarded() const noexcept { return !file_.empty(); }
  /// Null if no key of the file is this one. Without a file: one grant for all.
  std::shared_ptr<const key_grant> find(std::string_view key) const;

private:
  std::string file_;
  mutable std::mutex guard_;
  std::shared_ptr<const key_table> table_;
};

/// The key of a request: `Authorization: Bearer KEY`, else `x-api-key: KEY`; empty if none.
std::string_view bearer_key(std::string_view authorization, std::string_view x_api_key);

} // namespace di::serve
