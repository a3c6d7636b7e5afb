// SPDX-License-Identifier: Apache-2.0
// Which rank holds which routed expert: logical experts to physical slots and back, validated and
// versioned. How a good one is found is not decided here.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/expert_shard.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace di::engine {

/// Layers with the same number of experts, e.g. the backbone, or the draft layers.
struct expert_layers {
  std::uint32_t first_layer = 0;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  friend bool operator==(const expert_layers&, const expert_layers&) = default;
};

/// A rank in one of its lives.
struct placed_rank {
  rank_id rank;
  incarnation life{};
  friend bool operator==(const placed_rank&, const placed_rank&) = default;
};

/// Slots per rank that hold all experts and up to `redundant` copies more.
/// @pre ranks > 0
constexpr std::uint32_t slots_per_rank(std::uint32_t experts, std::uint32_t redundant,
                                       std::uint32_t ranks) noexcept {
  const std::uint64_t wanted = (std::uint64_t{experts} + redundant + ranks - 1) / ranks;
  return wanted < experts ? static_cast<std::uint32_t>(wanted) : experts;
}

/// An immutable placement; copies are cheap enough to keep one per epoch.
///
///   3 ranks, 4 experts, 2 slots:   rank 0: 0 1    rank 1: 2 3    rank 2: 0 1 (copies)
///
/// Every expert of every layer has at least one slot, no rank holds an expert twice, every slot
/// number is below its rank's slots. Shared by threads once made.
class placement {
public:
  static constexpr std::uint32_t empty_slot = ~0U; ///< in placement_group::expert_of_slot

  placement() = default;

  /// Blocks of consecutive experts, wrapping around: slot s of the i-th rank holds expert
  /// (i * slots + s) mod experts.
  /// @param ranks  ascending by number
  /// @errors       bad_argument (no rank, not ascending, no experts), limit_exceeded
  static result<placement> contiguous(std::span<const expert_layers> groups,
                                      std::span<const placed_rank> ranks, std::uint32_t redundant,
                                      epoch version, epoch view);

  /// Reads and checks what another process published.
  /// @errors bad_shape, duplicate, not_found (an expert without a slot), limit_exceeded
  static result<placement> from(const proto::placement_published& m);
  const proto::placement_published& published() const noexcept { return source_; }

  epoch version() const noexcept { return source_.placement; }
  epoch view() const noexcept { return source_.view; }
  std::size_t ranks() const noexcept { return source_.ranks.size(); }
  placed_rank rank_at(std::size_t index) const {
    return {source_.ranks[index], source_.lives[index]};
  }
  /// Place of a rank in ascending order; none if it is not in the placement.
  std::optional<std::size_t> index_of(rank_id rank) const noexcept;

  /// Whether the layer has routed experts here, and how many; 0 if not.
  std::uint32_t experts(layer_id layer) const noexcept;
  /// Experts in the slots of a rank; empty_slot marks unused ones. @pre index < ranks()
  std::span<const std::uint32_t> held(std::size_t index, layer_id layer) const noexcept;
  bool holds(std::size_t index, layer_id layer, std::uint32_t expert) const noexcept;
  /// Indices of all ranks that hold an expert, ascending. Empty for an unknown layer or expert.
  std::span<const std::uint32_t> holders(layer_id layer, std::uint32_t expert) const noexcept;
  /// Who serves the `turn`-th row of a caller for an expert. Rows go round the holders, callers
  /// begin at different ones: after any number of turns two holders differ by at most one row per
  /// caller. Where every rank holds the expert, callers serve themselves. @pre the expert exists
  std::size_t serving(std::size_t caller, layer_id layer, std::uint32_t expert,
                      std::uint64_t turn) const noexcept;

private:
  struct table {                        // one layer, or all layers of a group
    std::vector<std::uint32_t> begins;  // [experts + 1] into holders
    std::vector<std::uint32_t> holders; // rank indices, ascending per expert
  };
  struct group {
    std::uint32_t first_layer = 0, layers = 0, experts = 0, slots = 0;
    std::vector<table> tables; // [1 or layers]
  };
  static result<group> index_group(const proto::placement_group& g, std::size_t ranks);
  static result<table> index_table(const proto::placement_group& g, std::size_t ranks,
                                   std::uint32_t which);
  const group* group_of(layer_id layer) const noexcept;
  const table* table_of(layer_id layer) const noexcept;

  proto::placement_published source_;
  std::vector<group> groups_;
};

} // namespace di::engine
