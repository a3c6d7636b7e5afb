// SPDX-License-Identifier: Apache-2.0
// Simulated loads against real ones: what mail costs is fitted at one size, and held against
// others.
#include "chaos/cost_run.hpp"

#include <algorithm>
#include <cmath>

namespace di::chaos {
namespace {

cost_options as_measured(const cost_table& table, const cost_load& load) {
  cost_options o;
  o.load = load;
  o.ranks_per_host = 0;
  o.host_cores = table.cores;
  return o;
}

/// Sum of squared relative errors of the runs to fit; rates count more than first tokens.
result<double> misfit(const cost_table& table) {
  constexpr double first_token_weight = 0.25;
  double sum = 0;
  for (const measured_run& run : table.runs) {
    if (run.held_out)
      continue;
    DI_TRY(const auto got, simulate_load(table, as_measured(table, run.load)));
    const double rate = std::log(got.tokens_per_s / run.tokens_per_s);
    const double first = std::log(got.first_token_ms / run.first_token_ms);
    sum += rate * rate + first_token_weight * first * first;
  }
  return sum;
}

} // namespace

result<cost_table> calibrate(cost_table table) {
  if (table.runs.empty())
    return fail(ec::not_found, "the table has no real runs to calibrate on");
  // Pattern search over all three, in ratios: steps shrink when no direction helps.
  DI_TRY(double best, misfit(table));
  double step = 2;
  while (step > 1.03) {
    bool better = false;
    for (double cost_table::*const coefficient :
         {&cost_table::mail_us, &cost_table::wake_us, &cost_table::latency_us})
      for (const double factor : {step, 1 / step}) {
        cost_table tried = table;
        tried.*coefficient = std::max(0.1, tried.*coefficient * factor);
        DI_TRY(const double error, misfit(tried));
        if (error < best) {
          best = error;
          table = std::move(tried);
          better = true;
        }
      }
    if (!better)
      step = std::sqrt(step);
  }
  return table;
}

result<std::vector<cost_comparison>> compare(const cost_table& table) {
  std::vector<cost_comparison> all;
  for (const measured_run& run : table.runs) {
    cost_comparison c;
    c.real = run;
    DI_TRY(c.simulated, simulate_load(table, as_measured(table, run.load)));
    c.rate_error = c.simulated.tokens_per_s / run.tokens_per_s - 1;
    c.first_token_error = c.simulated.first_token_ms / run.first_token_ms - 1;
    all.push_back(c);
  }
  return all;
}

} // namespace di::chaos
