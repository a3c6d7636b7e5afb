// SPDX-License-Identifier: Apache-2.0
// Which experts get copies, and which rank holds which copy, so that no rank computes much more
// than the mean. Pure functions of counted rows; who loads what when is not decided here.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

/// Rows that experts computed over a window.
struct load_view {
  std::uint32_t bins = 1, layers = 0, experts = 0;
  std::span<const float> rows; ///< [bins, layers, experts], none negative; bins in order of time
};

/// Where copies may lie.
struct eplb_shape {
  std::uint32_t ranks = 0;
  std::uint32_t slots = 0; ///< per rank and layer
  /// [ranks] node of each rank, [0, nodes); empty: one node. With several, `groups` says which
  /// experts stay together on a node.
  std::vector<std::uint32_t> node_of_rank;
  std::uint32_t groups = 1; ///< experts / groups consecutive experts are one group
};

/// What a plan may cost and must bring.
struct eplb_limits {
  std::uint32_t moves_max = ~0U; ///< slots that get another expert than before
  double gain_min = 0;           ///< share of the peak rows by which a plan must lower them
};

struct eplb_plan {
  std::vector<std::uint32_t> expert_of_slot; ///< [layers, ranks, slots]; placement::empty_slot
  std::uint32_t moves = 0;                   ///< slots that hold another expert than before
  double peak_before = 0; ///< [rows] sum over bins and layers of the fullest rank; 0: no current
  double peak_after = 0;
  double mean = 0; ///< [rows] the same of the mean over ranks
};

/// Balances expert load over ranks by copying hot experts, layer by layer.
///
/// The goal is the sum over bins of the fullest rank's rows (one bin: its rows over the window).
/// Without `current`: each spare slot goes to the expert whose copy lowers the peak per copy most;
/// copies are packed heaviest first; then slots are swapped and copies given to other experts as
/// long as that lowers the goal. With `current`: the same improvements, best gain per move first
/// over all layers, within the limits; with no limit on moves also a plan from nothing, if better.
/// With several nodes and groups that can be spread over them evenly, groups are packed on nodes
/// first and all copies of an expert stay on its node; otherwise all ranks are alike.
///
/// No rank holds an expert twice. Deterministic; ties go to the lower index.
///
/// @param load     what was seen
/// @param current  [layers, ranks, slots]; empty: there is none
/// @return         without enough gain, `current` as it is with no moves
/// @errors         bad_argument (no ranks, groups that do not divide, negative or infinite rows),
///                 bad_shape (sizes), limit_exceeded (experts do not fit)
/// @cost           measured by tests/bench/eplb_bench.cpp
/// @source         github.com/deepseek-ai/EPLB for replicating and packing; the goal over bins is
///                 the one that DeepInfer uses
result<eplb_plan> plan_experts(const load_view& load, const eplb_shape& shape,
                               const eplb_limits& limits = {},
                               std::span<const std::uint32_t> current = {});

/// The published algorithm as it stands: copies of an expert may share a rank.
///
/// @param rows      [layers, experts]
/// @param replicas  slots in all; a multiple of ranks, at least experts
/// @param nodes     groups are packed on nodes if groups is a multiple of nodes
/// @return          [layers, replicas] expert of each slot, rank by rank
/// @errors          bad_argument, bad_shape
/// @source          github.com/deepseek-ai/EPLB
result<std::vector<std::uint32_t>>
plan_experts_published(std::span<const float> rows, std::uint32_t layers, std::uint32_t replicas,
                       std::uint32_t groups, std::uint32_t nodes, std::uint32_t ranks);

/// How even a placement is for some load: peak and mean as in eplb_plan; their ratio is moe_lb.
struct rank_balance {
  double peak = 0; ///< [rows] sum over bins and layers of the fullest rank
  double mean = 0; ///< [rows] the same of the mean over ranks
  double ratio() const noexcept { return mean > 0 ? peak / mean : 1; }
};

/// Rows of an expert go in equal parts to its slots. @param slots [layers, ranks, slots per rank]
/// @pre sizes agree; every expert with rows has a slot
rank_balance balance_of(const load_view& load, std::uint32_t ranks,
                        std::span<const std::uint32_t> slots);

} // namespace di::engine
