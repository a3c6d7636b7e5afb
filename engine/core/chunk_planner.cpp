// SPDX-License-Identifier: Apache-2.0
// Prompt chunks under a time budget.
#include "engine/core/chunk_planner.hpp"

#include <algorithm>

namespace di::engine {

std::uint32_t plan_chunks(std::span<const prompt_need> prompts, step_shape fixed,
                          const step_cost& cost, const chunk_rules& rules,
                          std::vector<std::uint32_t>& rows) {
  rows.assign(prompts.size(), 0);
  const std::uint32_t chunk_max = rules.chunk_max > 0 ? rules.chunk_max : chunk_rows_max;
  const double budget_ms = std::max(rules.step_ms, 2 * cost.ms(fixed));
  std::uint32_t taken = 0;
  for (std::size_t i = 0; i < prompts.size() && taken < rules.room; ++i) {
    const prompt_need& p = prompts[i];
    std::uint32_t wanted = std::min({p.rows, chunk_max, chunk_rows_max, rules.room - taken});
    if (p.cut > 0)
      wanted = std::min(wanted, p.cut);
    if (wanted == 0)
      continue;
    if (rules.step_ms > 0) {
      const std::uint32_t fits = cost.rows_within(budget_ms, fixed, p.context);
      const std::uint32_t least = std::min(wanted, std::max(rules.chunk_min, 1U));
      // Behind the oldest a chunk that is too small for its overhead waits for the next step. (The
      // 1 of rows_within() may mean that none fits.)
      step_shape with_least = fixed;
      with_least.add(least, p.context);
      if (i > 0 && cost.ms(with_least) > budget_ms)
        break;
      wanted = std::min(wanted, std::max(fits, least));
    }
    rows[i] = wanted;
    taken += wanted;
    fixed.add(wanted, p.context);
  }
  return taken;
}

} // namespace di::engine
