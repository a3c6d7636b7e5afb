// SPDX-License-Identifier: Apache-2.0
// The `config:` map of one actor, read by typed accessors; every mistake in it becomes one error
// that says where it stands.
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace di {

/// One `key: value` of a topology, still as text.
struct config_entry {
  std::string key;
  std::string value;
  std::string where; ///< "file:line:column", or empty if it comes from code
};

/// Configuration of one actor. Accessors never fail: a wrong value is noted and the default
/// returned, so that a constructor stays plain; whoever builds the actor asks finish() afterwards.
/// Copies share what was noted. Used on one thread at a time.
class actor_config {
public:
  /// @param owner  what errors call it, e.g. "token_meter at /cluster/meter"
  explicit actor_config(std::vector<config_entry> entries = {}, std::string owner = {});

  /// Whole number, decimal; `'` or `_` may group digits. Without a default the key must be there.
  std::uint64_t u64(std::string_view key) const;
  std::uint64_t u64(std::string_view key, std::uint64_t otherwise) const;
  std::string str(std::string_view key) const;
  std::string str(std::string_view key, std::string_view otherwise) const;
  /// true or false.
  bool flag(std::string_view key, bool otherwise) const;
  /// A number with its unit: ns, us, ms, s, min or h.
  di::duration duration(std::string_view key) const;
  di::duration duration(std::string_view key, di::duration otherwise) const;

  /// The first mistake: wrong value, missing key, or a key that no accessor asked for.
  /// @errors bad_config
  result<void> finish() const;
  const std::string& owner() const noexcept;

private:
  struct state;
  std::shared_ptr<state> state_;
};

/// Parses "60ms" and the like. @errors bad_config
result<duration> parse_duration(std::string_view text);

} // namespace di
