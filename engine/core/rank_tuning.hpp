// SPDX-License-Identifier: Apache-2.0
// What a rank has learned of its own steps: their cost, how much drafting pays, how far confidences
// can be trusted. Moves rows between steps, never a token.
#pragma once

#include "engine/core/calibration.hpp"
#include "engine/core/step_cost.hpp"
#include "engine/core/verify_planner.hpp"
#include "messaging/proto/rank.hpp"

#include <array>
#include <cstdint>

namespace di::engine {

/// Owned by rank_core, used on its thread only.
struct rank_tuning {
  explicit rank_tuning(std::uint32_t step_rows, std::uint32_t draft_block)
      : planner{planner_options(step_rows)},
        confidences{calibration{positions(draft_block)}, calibration{positions(draft_block)},
                    calibration{positions(draft_block)}, calibration{positions(draft_block)}} {}

  step_cost cost;
  verify_planner planner;
  std::array<calibration, temperature_buckets> confidences;
  std::array<std::uint64_t, drafts_max> verified{}; ///< [position] drafts whose rows were computed
  std::array<std::uint64_t, drafts_max> accepted{}; ///< [position] of them, drawn by the target

private:
  static std::uint32_t positions(std::uint32_t block) noexcept { return block == 0 ? 1 : block; }
  static verify_planner_options planner_options(std::uint32_t step_rows) noexcept {
    verify_planner_options o;
    o.rows_max = step_rows;
    return o;
  }
};

/// Fills cost, drafting and drafts.
void describe(const rank_tuning& tuning, std::uint32_t draft_block, proto::rank_state& state);

} // namespace di::engine
