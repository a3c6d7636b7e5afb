// SPDX-License-Identifier: Apache-2.0
// Balancing the experts of one layer: copies, packing and improving. Scratch of plan_experts().
#pragma once

#include "engine/moe/splitmix.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

/// Where the copies of a layer's experts may lie; experts are tied to a node or free.
struct layer_shape {
  std::uint32_t experts = 0, ranks = 0, slots = 0;
  std::uint32_t bins = 1;
  std::vector<std::uint32_t> node_of_rank; ///< [ranks]; all 0: one node
  std::uint32_t nodes = 1;
};

/// One improvement: up to two slots get another expert.
struct slot_change {
  std::uint32_t rank = 0, slot = 0, expert = 0;
};
struct improvement {
  double gain = 0;         ///< [rows] by which it lowers the peak sum; may be 0
  std::uint32_t moves = 0; ///< changes that load something; the others empty their slot
  std::uint32_t count = 0;
  std::array<slot_change, 2> changes; ///< the first `count`
  /// Whether it brings more per move than another; one without moves counts as one.
  bool beats(const improvement& o) const noexcept {
    return gain * std::max(o.moves, 1U) > o.gain * std::max(moves, 1U);
  }
};

/// Used for one layer after another; keeps its memory.
///
///   rows -> (replicate, pack) or adopt -> improve -> write
class layer_balancer {
public:
  static constexpr std::uint32_t none = ~0U; ///< no expert

  explicit layer_balancer(layer_shape shape);

  /// The layer's rows. @param rows  rows[bin * stride + expert]
  void set_rows(const float* rows, std::size_t stride);
  /// Ties every expert to a node. @param node_of_expert [experts]; empty: free
  void tie(std::span<const std::uint32_t> node_of_expert);
  /// Gives all slots copies. @pre each node has slots for its experts
  void replicate();
  void pack();
  /// Begins with a placement. @return false: an expert has no slot, or one rank holds it twice
  bool adopt(std::span<const std::uint32_t> slots);
  /// Improves as long as something helps. @param log  gets each change; may be null
  /// @param even_out  also changes that only even out ranks below the peak
  void improve(std::uint32_t rounds_max, std::uint32_t moves_max, double gain_min, bool even_out,
               std::vector<improvement>* log);
  /// Small random changes, each improved and kept if that helped. Always the same ones.
  void shake(std::uint32_t times, std::uint32_t rounds_max);
  double peak_sum() const; ///< [rows] sum over bins of the fullest rank
  std::span<const std::uint32_t> slots() const noexcept { return held_; }

private:
  static constexpr std::size_t tops_kept = 6;
  struct top { ///< fullest ranks of a bin, fullest first
    std::array<float, tops_kept> rows;
    std::array<std::uint32_t, tops_kept> ranks;
  };
  float* load_of(std::uint32_t rank) { return loads_.data() + std::size_t{rank} * bins_; }
  const float* share_of(std::uint32_t expert) const {
    return expert == none ? zero_.data() : shares_.data() + std::size_t{expert} * bins_;
  }
  std::uint32_t& held(std::uint32_t rank, std::uint32_t slot) {
    return held_[std::size_t{rank} * shape_.slots + slot];
  }
  bool holds(std::uint32_t rank, std::uint32_t expert) const {
    return expert != none && (holders_[std::size_t{expert} * words_ + rank / 64] >> rank % 64 & 1);
  }
  void set_holds(std::uint32_t rank, std::uint32_t expert, bool yes) {
    std::uint64_t& word = holders_[std::size_t{expert} * words_ + rank / 64];
    const std::uint64_t bit = std::uint64_t{1} << rank % 64;
    word = yes ? word | bit : word & ~bit;
  }
  bool may_hold(std::uint32_t rank, std::uint32_t expert) const {
    return node_of_expert_.empty() || expert == none
           || node_of_expert_[expert] == shape_.node_of_rank[rank];
  }
  std::uint32_t copies_max(std::uint32_t expert) const;
  void set_copies(std::uint32_t expert, std::uint32_t copies);
  std::uint32_t most_wanted(std::uint32_t node) const;
  void find_wanted(std::uint32_t node, std::uint32_t extra);
  void replicate_node(std::uint32_t node, std::uint32_t slots);
  void place(std::uint32_t expert, std::vector<std::uint32_t>& by_load);
  void make_room(std::uint32_t expert, std::vector<std::uint32_t>& by_load);
  void put(std::uint32_t rank, std::uint32_t slot, std::uint32_t expert);
  void recount();
  double find_tops();
  void find_lightest(std::size_t count);
  improvement find_best(std::uint32_t first, std::uint32_t bins, double peak, bool even_out);
  void try_swaps(std::uint32_t a, double peak, improvement& best, double& best_even);
  void try_copies(std::uint32_t a, double peak, improvement& best);
  void try_copy(std::uint32_t y, std::uint32_t b, std::uint32_t slot, double peak,
                improvement& best);
  void try_drops(std::uint32_t a, double peak, improvement& best);
  void disturb(splitmix& random);
  void apply(const improvement& i);

  layer_shape shape_;
  std::uint32_t bins_ = 1;            ///< 1 or a multiple of 4; the rest is zero
  std::vector<float> rows_, shares_;  ///< [experts, bins]; share: of one copy
  std::vector<float> weights_;        ///< [experts] sum of the share over bins
  std::vector<std::uint32_t> copies_; ///< [experts]
  std::vector<std::uint32_t> node_of_expert_, ranks_of_node_;
  std::vector<std::uint32_t> held_;    ///< [ranks, slots]
  std::vector<std::uint32_t> filled_;  ///< [ranks] slots in use, at the front while packing
  std::size_t words_ = 1;              ///< of a bit per rank
  std::vector<std::uint64_t> holders_; ///< [experts, words] bit per rank
  std::vector<float> loads_, totals_;  ///< [ranks, bins], [ranks]
  std::vector<float> trial_, zero_, peaks_;
  std::vector<top> tops_;                      ///< [bins]
  mutable std::vector<std::uint32_t> highest_; ///< scratch of most_wanted()
  mutable std::vector<float> first_, second_;
  std::vector<std::uint32_t> lightest_, order_, wanted_;
};

} // namespace di::engine
