// SPDX-License-Identifier: Apache-2.0
// How well a step-time model of four published points predicts the other two, and what the planner
// gains on it. JSON; assumptions in tests/support/published_loads.hpp.
#include "tests/support/published_loads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace di::test {
namespace {

std::string splits_json(double bonus) {
  std::string out;
  double worst = 0, worst_inside = 0, sum = 0;
  for (const split& s : all_splits(bonus)) {
    for (const double e : s.error) {
      worst = std::max(worst, std::abs(e));
      sum += std::abs(e);
      if (s.inside())
        worst_inside = std::max(worst_inside, std::abs(e));
    }
    out += fmt::format("{}\n    {{\"left_out\": [{}, {}], \"error_pp\": [{:.2f}, {:.2f}], "
                       "\"fit_error_pp\": {:.2f}, \"b\": {:.3g}, \"q\": {:.3g}, \"s\": {:.3g}}}",
                       out.empty() ? "" : ",", published_loads[s.left_out[0]].sequences,
                       published_loads[s.left_out[1]].sequences, 100 * s.error[0], 100 * s.error[1],
                       100 * s.fit_error, s.fit.b, s.fit.q, s.fit.s);
  }
  return fmt::format("{{\"mean_abs_error_pp\": {:.2f}, \"worst_pp\": {:.2f}, "
                     "\"worst_inside_pp\": {:.2f}, \"splits\": [{}]}}",
                     100 * sum / 30, 100 * worst, 100 * worst_inside, out);
}

std::string loads_json(const step_time& time, const draft_mixture& drafts) {
  std::string out;
  for (const std::uint32_t n : {1U, 4U, 8U, 16U, 24U, 32U, 48U, 60U, 72U, 96U, 128U, 192U, 256U}) {
    const load_result r = replay(time, drafts, n, 1000, 1);
    const auto* published = std::find_if(published_loads.begin(), published_loads.end(),
                                         [n](const published_load& p) { return p.sequences == n; });
    out += fmt::format(
        "{}\n    {{\"sequences\": {}, \"verified\": {:.2f}, \"accepted\": {:.2f}, "
        "\"gain_over_fixed5_pct\": {:.2f}, \"published_gain_pct\": {}, "
        "\"best_fixed\": {}, \"gain_over_best_fixed_pct\": {:.2f}, "
        "\"steps_trimmed_pct\": {:.1f}}}",
        out.empty() ? "" : ",", n, r.verified, r.accepted, 100 * r.gain,
        published == published_loads.end() ? "null" : fmt::format("{:.1f}", 100 * published->gain),
        r.best_fixed, 100 * r.over_best, 100 * r.trimmed);
  }
  return out;
}

} // namespace

int run() {
  const draft_mixture m = fit_mixture();
  const std::size_t four[] = {0, 1, 3, 5}; // 48 and 72 are left out
  const std::size_t six[] = {0, 1, 2, 3, 4, 5};
  fmt::print("{{\n  \"mixture\": {{\"p\": {:.4f}, \"sure\": {:.4f}, \"unsure\": {:.4f}, "
             "\"worst_accepted_error\": {:.3f}}},\n",
             m.p, m.sure, m.unsure, mixture_error(m));
  fmt::print("  \"left_out\": {},\n", splits_json(1));
  fmt::print("  \"left_out_if_accepted_counts_the_bonus\": {},\n", splits_json(0));
  fmt::print("  \"planner_on_fit_without_48_and_72\": [{}],\n", loads_json(fit_step_time(four), m));
  fmt::print("  \"planner_on_fit_of_all\": [{}],\n", loads_json(fit_step_time(six), m));
  std::string fits;
  for (const split& s : all_splits()) {
    std::string gains;
    for (const std::size_t i : {3U, 4U, 5U}) {
      const auto n = static_cast<std::uint32_t>(published_loads[i].sequences);
      gains += fmt::format("{}{:.2f}", gains.empty() ? "" : ", ",
                           100 * (replay(s.fit, m, n, 400, 1).gain - published_loads[i].gain));
    }
    fits +=
        fmt::format("{}\n    {{\"left_out\": [{}, {}], \"gain_minus_published_at_60_72_96_pp\": "
                    "[{}]}}",
                    fits.empty() ? "" : ",", published_loads[s.left_out[0]].sequences,
                    published_loads[s.left_out[1]].sequences, gains);
  }
  fmt::print("  \"planner_on_every_fit\": [{}]\n}}\n", fits);
  return 0;
}

} // namespace di::test

int main() {
  return di::test::run();
}
