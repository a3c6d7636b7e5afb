// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging of one piece: the tables and the loop, without any notion of text.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace di::engine {

/// One line of the merge list; its rank is its place in the list.
struct merge_rule {
  token_id left = 0, right = 0, result = 0;
};

/// Merges the bytes of a piece into tokens.
///
/// Start from single bytes; among adjacent pairs of the merge list take the one of lowest rank,
/// leftmost of equals; repeat until no pair is in the list. A pair merges only if that very pair is
/// listed. Immutable after build(); shared by all threads.
class byte_pairs {
public:
  static constexpr std::uint32_t ids_max =
      1U << 20; ///< ids are below this, so that a pair and a rank fit 64 bits
  static constexpr std::uint32_t merges_max = 1U << 20; ///< [merges]

  /// Makes the tables.
  ///
  /// @param byte_ids   [256] token of each single byte
  /// @param merges     in rank order; ids in [0, ids_max)
  /// @errors           ec::limit_exceeded (too many merges), ec::duplicate (a pair listed twice),
  /// ec::bad_argument
  static result<byte_pairs> build(const std::array<token_id, 256>& byte_ids,
                                  std::vector<merge_rule> merges);

  /// Appends the tokens of one piece.
  ///
  /// @cost   n log n in the bytes of the piece; pieces of up to `short_max` bytes take a loop
  /// without allocation
  void merge(std::string_view piece, std::vector<token_id>& out) const;

private:
  static constexpr std::uint32_t no_rank = ~0U;
  static constexpr std::size_t short_max =
      40; // [bytes] above it a heap keeps the cost from growing quadratically

  std::uint32_t rank_of(token_id left, token_id right) const noexcept;
  void merge_short(std::string_view piece, std::vector<token_id>& out) const;
  void merge_long(std::string_view piece, std::vector<token_id>& out) const;

  std::array<token_id, 256> byte_ids_{};
  std::vector<token_id> results_; // [merges] token that each merge makes
  std::vector<std::uint64_t>
      slots_; // open addressing: left 20 bits, right 20 bits, rank 20 bits; ~0 = empty
  std::vector<std::uint32_t> byte_ranks_; // [256, 256] rank of a pair of single bytes
};

} // namespace di::engine
