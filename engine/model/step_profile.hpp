// SPDX-License-Identifier: Apache-2.0
// Times dummy steps and draft passes of some sizes, so that a rank knows what they cost before its
// first request.
#pragma once

#include "engine/model/draft_runner.hpp"
#include "engine/model/expert_runner.hpp"
#include "engine/model/sequence_state.hpp"
#include "engine/model/step.hpp"
#include "messaging/base/env.hpp"

#include <cstdint>
#include <vector>

namespace di::engine {

struct profile_options {
  duration budget{};               ///< for all of it; 0: nothing is run
  std::uint32_t rows_max = 0;      ///< [rows] of the largest step; they must fit the pool
  std::uint32_t sequences_max = 0; ///< [sequences] of the largest draft pass
  std::uint32_t replays = 5;       ///< of one size at most
  token_id vocab = 0;
};

struct sized_time {
  std::uint32_t size = 0; ///< [rows] or [sequences]
  double ms = 0;
};

/// Ascending sizes, times that do not fall.
struct step_profile {
  std::vector<sized_time> steps;  ///< by rows, feeding of draft layers included
  std::vector<sized_time> drafts; ///< by sequences, drawing included
};

/// Runs steps of 1, 2, 4, ... rows and, in turns with them, draft passes of as many sequences; each
/// size some times, and keeps the median. A first step of one row, to touch the weights, counts
/// against the budget only. A size is not begun unless twice the time of half its size is left: if
/// time grows no faster than size, a profile exceeds its budget by one step of one row at most.
///
/// Experts are all computed here: with more ranks the way to them is missing, which the first real
/// steps add. Noise only ever makes a step longer, so of a size that took longer than a larger one
/// the time of that one is kept.
///
/// @param layout, pool  of the sequence that is run; all its pages are given back
/// @param drafts        null: steps only
/// @errors those of the runners; bad_argument (vocab)
result<step_profile> profile_steps(const profile_options& options, step_runner& steps,
                                   draft_runner* drafts, expert_runner& experts,
                                   const kv_layout& layout, page_pool& pool, const env& clock);

} // namespace di::engine
