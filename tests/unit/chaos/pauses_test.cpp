// SPDX-License-Identifier: Apache-2.0
// Gaps of token times around faults.
#include "chaos/pauses.hpp"

#include <gtest/gtest.h>

namespace di::chaos {
namespace {

std::vector<log_event> began(std::vector<std::int64_t> at) {
  std::vector<log_event> out;
  for (const std::int64_t t : at)
    out.push_back({t, "/control", "info", "batch_began", {}});
  return out;
}

/// A token every 10 ms, but `gap_ms` before token `hole`.
answer ticking(std::uint32_t rank, std::size_t tokens, std::size_t hole = 0, double gap_ms = 10) {
  answer a;
  stream s;
  double at = 0;
  for (std::size_t i = 0; i < tokens; ++i) {
    at += i == hole && i > 0 ? gap_ms : 10;
    s.token_ms.push_back(at);
    s.ids.push_back(1);
  }
  s.served_by = {{0, rank}};
  a.streams = {std::move(s)};
  return a;
}

TEST(token_gaps, are_pauses_beyond_the_streams_own_median) {
  // The hole of both begins before the fault at 100 ms and ends behind it.
  const std::vector<answer> answers = {ticking(0, 30, 10, 110), ticking(3, 30, 10, 410)};
  const token_times times{answers, began({5'000'000})};
  injected f;
  f.ranks = {3};
  f.begin_us = 5'000'000 + 105'000;
  const pauses p = times.pauses_of(f, INT64_MAX);
  EXPECT_EQ(p.survivor.count, 1U);
  EXPECT_NEAR(p.survivor.max, 100, 1e-6);
  EXPECT_EQ(p.victim.count, 1U);
  EXPECT_NEAR(p.victim.max, 400, 1e-6);
  EXPECT_EQ(p.fresh.count, 0U);
  EXPECT_NEAR(times.median_gap_ms(f.begin_us), 10, 1e-6);
}

TEST(token_gaps, of_streams_without_a_token_are_their_wait_for_the_first) {
  answer late = ticking(1, 5);
  late.streams[0].submitted_ms = 40;
  for (double& t : late.streams[0].token_ms)
    t += 200; // first at 210 ms
  const token_times times{{late}, began({1'000'000})};
  injected f;
  f.begin_us = 1'000'000 + 60'000;
  const pauses p = times.pauses_of(f, INT64_MAX);
  EXPECT_EQ(p.fresh.count, 1U);
  EXPECT_NEAR(p.fresh.max, 150, 1e-6);
}

TEST(token_gaps, of_ended_streams_do_not_count) {
  const token_times times{{ticking(0, 3)}, began({1'000'000})};
  injected f;
  f.begin_us = 2'000'000;
  EXPECT_EQ(times.pauses_of(f, INT64_MAX).survivor.count, 0U);
}

TEST(token_gaps, around_a_return_are_those_that_end_after_it) {
  // Streams wait before their 5th, 10th and 20th token; the return is at 105 ms.
  const std::vector<answer> answers = {ticking(0, 30, 4, 90), ticking(1, 30, 9, 40),
                                       ticking(2, 30, 19, 25), ticking(3, 5)};
  const token_times times{answers, began({1'000'000})};
  const std::int64_t back_us = 1'000'000 + 105'000;
  std::vector<double> found = times.pauses_around(back_us, 1'000'000, back_us + 50'000);
  ASSERT_EQ(found.size(), 3U); // the last one had ended
  EXPECT_NEAR(found[0], 80, 1e-6);
  EXPECT_NEAR(found[1], 30, 1e-6);
  EXPECT_NEAR(found[2], 0, 1e-6); // its wait begins too late
  found = times.pauses_around(back_us, 1'000'000 + 50'000, back_us + 200'000);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_NEAR(found[0], 0, 1e-6); // its wait began before
  EXPECT_NEAR(found[2], 15, 1e-6);
}

TEST(token_gaps, count_from_the_life_that_wrote_the_answer) {
  answer late = ticking(0, 3);
  late.streams[0].token_ms = {10, 20, 30};
  answer early = ticking(0, 3);
  early.streams[0].token_ms = {10, 20, 1500}; // cannot be of a life that ended at 1,000 ms
  const token_times times{{late, early}, began({1'000'000, 2'000'000})};
  injected f;
  f.begin_us = 3'000'000;
  EXPECT_EQ(times.pauses_of(f, INT64_MAX).survivor.count, 1U); // the last token came at 3,500 ms
}

TEST(quantiles, are_of_the_sorted_values) {
  const quantiles q = quantiles_of({3, 1, 2});
  EXPECT_EQ(q.count, 3U);
  EXPECT_DOUBLE_EQ(q.p50, 2);
  EXPECT_DOUBLE_EQ(q.max, 3);
  EXPECT_EQ(quantiles_of({}).count, 0U);
}

} // namespace
} // namespace di::chaos
