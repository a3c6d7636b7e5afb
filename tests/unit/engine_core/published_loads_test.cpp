// SPDX-License-Identifier: Apache-2.0
// On a model of the published loads (assumptions in tests/support/published_loads.hpp) the planner
// is never worse than any fixed length and gains what was published, or more.
#include "tests/support/published_loads.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace di::test {
namespace {

constexpr std::size_t all_points[] = {0, 1, 2, 3, 4, 5};
constexpr std::size_t four_points[] = {0, 1, 3, 5}; // without 48 and 72 sequences

std::string shown(const split& s) {
  return fmt::format("without {} and {}: {:+.2f}, {:+.2f} points",
                     published_loads[s.left_out[0]].sequences,
                     published_loads[s.left_out[1]].sequences, 100 * s.error[0], 100 * s.error[1]);
}

} // namespace

TEST(published_loads, are_predicted_by_a_step_time_fitted_to_four_of_them) {
  const auto splits = all_splits();
  ASSERT_EQ(splits.size(), 15U);
  for (const split& s : splits) {
    // In percentage points of throughput. Beyond the last point the curve is a guess.
    const double allowed = s.inside() ? 0.006 : 0.0125;
    for (const double e : s.error)
      EXPECT_LT(std::abs(e), allowed) << shown(s);
    EXPECT_LT(s.fit_error, 0.003) << shown(s);
    std::printf("%s\n", shown(s).c_str());
  }
}

TEST(published_loads, are_matched_by_the_mixture_of_drafts) {
  const draft_mixture m = fit_mixture();
  EXPECT_LT(mixture_error(m), 0.05); // [accepted drafts]
  EXPECT_GT(m.sure, m.unsure);
  EXPECT_NEAR(m.accepted(5), 3.29, 0.03);
  EXPECT_DOUBLE_EQ(m.accepted(0), 0);
  // More verified, more accepted, each less likely than the one before.
  for (double v = 0.5; v < 5; v += 0.5)
    EXPECT_LE(m.accepted(v + 0.5) - m.accepted(v), m.accepted(v) - m.accepted(v - 0.5) + 1e-12);
}

TEST(published_loads, are_planned_no_worse_than_with_any_fixed_length_at_any_load) {
  const draft_mixture drafts = fit_mixture();
  for (const step_time& time : {fit_step_time(four_points), fit_step_time(all_points)})
    for (const std::uint32_t n :
         {1U, 2U, 4U, 8U, 16U, 20U, 24U, 32U, 48U, 60U, 72U, 96U, 160U, 256U}) {
      const load_result r = replay(time, drafts, n, 300, 7);
      EXPECT_GE(r.over_best, -1e-6) << n << " sequences, best fixed length " << r.best_fixed;
    }
}

TEST(published_loads, are_planned_no_worse_than_fixed_with_any_fit) {
  const draft_mixture drafts = fit_mixture();
  for (const split& s : all_splits())
    for (const std::uint32_t n : {1U, 8U, 24U, 48U, 96U, 256U})
      EXPECT_GE(replay(s.fit, drafts, n, 100, 9).over_best, -1e-6) << shown(s) << ": " << n;
}

TEST(published_loads, gain_at_least_what_was_published) {
  const draft_mixture drafts = fit_mixture();
  const auto gains = [&](const step_time& time, std::size_t first) {
    for (std::size_t i = first; i < published_loads.size(); ++i) {
      const published_load& p = published_loads[i];
      const load_result r = replay(time, drafts, static_cast<std::uint32_t>(p.sequences), 300, 7);
      EXPECT_GE(r.gain, p.gain) << p.sequences << " sequences";
    }
  };
  gains(fit_step_time(four_points), 0);
  gains(fit_step_time(all_points), 0);
  for (const split& s : all_splits())
    if (s.left_out[1] != 5) { // the fit has seen 96 sequences
      SCOPED_TRACE(shown(s));
      gains(s.fit, 3);
    }
}

TEST(published_loads, begin_to_gain_from_trimming_where_the_table_does) {
  // The table crosses zero at 24 sequences per rank.
  const draft_mixture drafts = fit_mixture();
  const step_time time = fit_step_time(four_points);
  EXPECT_LT(replay(time, drafts, 12, 300, 7).trimmed, 0.05);
  EXPECT_GT(replay(time, drafts, 40, 300, 7).trimmed, 0.95);
}

} // namespace di::test
