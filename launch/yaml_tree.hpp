// SPDX-License-Identifier: Apache-2.0
// YAML text as a small tree that remembers where each value stands. Bounded; aliases, tags and
// duplicate keys are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace di::launch {

/// Where a value was written: a place in the topology file, or a `--set` of the command line.
struct place {
  std::uint32_t line = 1, column = 1; ///< from 1; of the file, or of the text after `=`
  std::uint32_t set = 0;              ///< 0: the file; n: the n-th `--set`, from 1
  friend bool operator==(const place&, const place&) = default;
};

/// One defect of an input and where it is.
struct problem {
  place at;
  std::string what;
  friend bool operator==(const problem&, const problem&) = default;
};

enum class yaml_kind : std::uint8_t { null, scalar, sequence, mapping };

/// One value. For mappings `keys[i]` names `items[i]`.
struct yaml_node {
  struct key_text {
    std::string text;
    place at;
  };

  yaml_kind kind = yaml_kind::null;
  place at;
  bool quoted = false; ///< a scalar in quotes is text, whatever it looks like
  std::string text;    ///< scalars
  std::vector<key_text> keys;
  std::vector<yaml_node> items;

  /// Index of a key of a mapping, or `npos`.
  std::size_t find(std::string_view key) const noexcept;
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);
};

struct yaml_limits {
  std::size_t text_bytes = 1U << 20U; ///< [bytes] of one document
  std::size_t nodes = 20'000;         ///< values in one document
  std::size_t depth = 16;             ///< nested mappings and sequences
};

/// Reads exactly one document. Defects are added to `problems`; what could be read is returned.
/// Never throws, never recurses on input deeper than the limits.
///
/// @param set  0 for a file, else the number of the `--set`
yaml_node read_yaml(std::string_view text, std::uint32_t set, std::vector<problem>& problems,
                    const yaml_limits& limits = {});

} // namespace di::launch
