// SPDX-License-Identifier: Apache-2.0
// The trie keeps children as a list of siblings: contents share long prefixes, so lists are short.
#include "engine/text/added_tokens.hpp"

namespace di::engine {

std::uint32_t added_token_finder::child(std::uint32_t of, char byte) const noexcept {
  std::uint32_t at = nodes_[of].first_child;
  while (at != none && nodes_[at].byte != byte)
    at = nodes_[at].sibling;
  return at;
}

bool added_token_finder::insert(std::string_view content, token_id id) {
  std::uint32_t at = 0;
  for (const char byte : content) {
    std::uint32_t next = child(at, byte);
    if (next == none) {
      next = static_cast<std::uint32_t>(nodes_.size());
      nodes_.push_back({none, nodes_[at].first_child, -1, byte});
      nodes_[at].first_child = next;
    }
    at = next;
  }
  if (nodes_[at].id >= 0)
    return false;
  nodes_[at].id = id;
  starts_[static_cast<std::uint8_t>(content.front())] = true;
  return true;
}

added_token_finder::hit added_token_finder::find(std::string_view text,
                                                 std::size_t from) const noexcept {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<std::uint8_t>(text[begin])])
      continue;
    hit best{begin, begin, -1};
    std::uint32_t at = 0;
    for (std::size_t i = begin; i < text.size(); ++i) {
      at = child(at, text[i]);
      if (at == none)
        break;
      if (nodes_[at].id >= 0)
        best = {begin, i + 1, nodes_[at].id};
    }
    if (best.id >= 0)
      return best;
  }
  return {text.size(), text.size(), 0};
}

} // namespace di::engine
