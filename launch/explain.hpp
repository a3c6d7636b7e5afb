// SPDX-License-Identifier: Apache-2.0
// The table of all topology keys: type, default, bounds, meaning. The parser reads files by this
// table and `dilaunch explain` and doc/topology.md print it, so the three cannot differ.
#pragma once

#include "launch/topology.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace di::launch {

enum class key_kind : std::uint8_t {
  section,   ///< mapping with known keys
  list,      ///< sequence of sections; its rows continue with `[]`
  text,      ///< any text
  file_path, ///< relative to the topology file
  integer,   ///< whole number within [min, max]
  boolean,   ///< true or false
  choice,    ///< one of `choices`
  time,      ///< number and unit, within [min, max] ns
  size,      ///< number and unit, within [min, max] bytes
  texts,     ///< sequence of text
  paths,     ///< sequence of file paths
  free_map,  ///< mapping with any keys, scalar values
};

/// A scalar after its check; `number` holds integers, nanoseconds or bytes.
struct scalar {
  std::string text;
  std::int64_t number = 0;
  bool truth = false;
  place at;

  std::uint32_t u32() const noexcept { return static_cast<std::uint32_t>(number); }
};

/// One key. `set` puts a value into entry `index` of the innermost list (0 outside lists).
struct key_row {
  std::string_view key; ///< e.g. cluster.nodes[].ranks
  key_kind kind = key_kind::text;
  std::string_view fallback; ///< as one would write it; in parentheses: computed; empty: none
  std::string_view doc;
  void (*set)(topology& t, std::size_t index, const scalar& v) = nullptr;
  std::int64_t min = 0;
  std::int64_t max = INT64_MAX;
  std::string_view choices = {};     ///< a|b|c
  bool required = false;             ///< in the file (for list entries: in each)
  std::string_view other_names = {}; ///< a|b: what other systems call it; only for suggestions
};

/// All keys in the order of the documentation; sections before their keys.
std::span<const key_row> all_keys();
/// The row of a pattern, or null.
const key_row* find_key(std::string_view pattern);
std::string_view to_string(key_kind kind) noexcept;

/// Text of `dilaunch explain KEY`; without a key, the list of all. `cluster.nodes[3].ranks` finds
/// `cluster.nodes[].ranks`. @errors not_found, with a suggestion
result<std::string> explain(std::string_view key);
/// doc/topology.md.
std::string topology_markdown();

} // namespace di::launch
