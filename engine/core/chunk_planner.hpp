// SPDX-License-Identifier: Apache-2.0
// How many rows of which prompt a step computes beside its decode rows: the oldest prompt first, as
// many as fit the step's time by the cost model, then the next. Pure.
//
// Decoding never starves: its rows are in the step anyway, and prompts make a step no longer than
// the budget, twice the step without them, or `chunk_min` rows. Twice: where a step costs more than
// the budget before any prompt row is in it (many ranks on few cores), small chunks would pay that
// cost again and again; a chunk as dear as the rest of its step wastes at most half. Prompts never
// starve: in each step the oldest gets chunk_min rows or all it needs, whatever the budget says, so
// one with W rows of older prompts before it starts after at most W / chunk_min steps (and one more
// for each older prompt's rest).
#pragma once

#include "engine/core/step_cost.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

/// A prompt that waits for rows.
struct prompt_need {
  std::uint32_t rows = 0;    ///< [rows] not yet computed, >= 1
  std::uint32_t context = 0; ///< [positions] before them
  std::uint32_t cut = 0;     ///< [rows] after which a chunk must end (a snapshot); 0: none
};

struct chunk_rules {
  double step_ms = 0;          ///< [ms] of the whole step, or twice its fixed part if that is more;
                               ///< 0: rows alone count
  std::uint32_t room = 0;      ///< [rows] left in the step
  std::uint32_t chunk_max = 0; ///< [rows] of one prompt; 0: chunk_rows_max
  std::uint32_t chunk_min = 16; ///< [rows] of the oldest, even beyond step_ms
};

/// @param prompts  oldest first
/// @param fixed    what the step computes anyway
/// @param rows     receives one number per prompt; 0: not in this step
/// @return  sum of rows
std::uint32_t plan_chunks(std::span<const prompt_need> prompts, step_shape fixed,
                          const step_cost& cost, const chunk_rules& rules,
                          std::vector<std::uint32_t>& rows);

} // namespace di::engine
