// SPDX-License-Identifier: Apache-2.0
// Finds added tokens (control spellings such as <｜User｜>) in a text: leftmost first, then
// longest.
#pragma once

#include "messaging/base/ids.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace di::engine {

/// A trie over the contents of the added tokens. Filled once, then immutable and shared by all
/// threads.
class added_token_finder {
public:
  struct hit {
    std::size_t begin = 0, end = 0; ///< [bytes]; begin == end == text.size() when there is none
    token_id id = 0;
  };

  /// Adds one token; returns false if that content is known already. @pre content is not empty
  bool insert(std::string_view content, token_id id);

  /// The leftmost hit at or after `from`; of several that start there the longest.
  ///
  /// @cost   linear in text times the longest content
  hit find(std::string_view text, std::size_t from) const noexcept;

private:
  static constexpr std::uint32_t none = ~0U;
  struct node {
    std::uint32_t first_child = none, sibling = none;
    token_id id = -1; // -1: no token ends here
    char byte = 0;
  };
  std::uint32_t child(std::uint32_t of, char byte) const noexcept;

  std::vector<node> nodes_{node{}};
  std::array<bool, 256> starts_{}; // bytes with which some content starts
};

} // namespace di::engine
