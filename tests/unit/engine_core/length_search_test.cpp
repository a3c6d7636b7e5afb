// SPDX-License-Identifier: Apache-2.0
// The plan is the best there is: compared with all possible ones on small cases. And its rules:
// prefixes, ties, broken survivals.
#include "engine/core/length_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace di::engine {
namespace {

using lists = std::vector<std::vector<float>>;

std::vector<std::span<const float>> spans_of(const lists& survivals) {
  return {survivals.begin(), survivals.end()};
}

double rate_of(const lists& survivals, const std::vector<std::uint32_t>& lengths,
               const std::vector<double>& step_ms) {
  double tokens = static_cast<double>(survivals.size());
  std::uint32_t drafts = 0;
  for (std::size_t i = 0; i < survivals.size(); ++i) {
    drafts += lengths[i];
    for (std::uint32_t j = 0; j < lengths[i]; ++j)
      tokens += static_cast<double>(survivals[i][j]);
  }
  return drafts < step_ms.size() ? tokens / step_ms[drafts] : 0;
}

/// Of all allocations.
double best_rate(const lists& survivals, const std::vector<std::uint32_t>& counts,
                 const std::vector<double>& step_ms) {
  std::vector<std::uint32_t> lengths(counts.size(), 0);
  double best = 0;
  while (true) {
    best = std::max(best, rate_of(survivals, lengths, step_ms));
    std::size_t i = 0;
    while (i < lengths.size() && lengths[i] == counts[i])
      lengths[i++] = 0;
    if (i == lengths.size())
      return best;
    ++lengths[i];
  }
}

double unit(std::mt19937_64& random) {
  return static_cast<double>(random() % 1'000'001) / 1e6;
}

struct search_case {
  lists survivals;
  std::vector<std::uint32_t> counts;
  std::vector<double> step_ms;
};

/// Up to four sequences of up to four drafts; staircases with flat parts and steps of any height.
search_case random_case(std::mt19937_64& random) {
  search_case c;
  const auto sequences = 1 + random() % 4;
  std::uint32_t total = 0;
  for (std::uint64_t i = 0; i < sequences; ++i) {
    c.counts.push_back(static_cast<std::uint32_t>(random() % 5));
    total += c.counts.back();
    std::vector<float>& a = c.survivals.emplace_back();
    double survival = 1;
    const auto kind = random() % 4; // all sure, all alike, any, hopeless
    for (std::uint32_t j = 0; j < c.counts.back(); ++j) {
      survival *= kind == 0 ? 1 : kind == 1 ? 0.75 : kind == 2 ? unit(random) : 0.02;
      a.push_back(static_cast<float>(survival));
    }
  }
  double ms = 0.1 + unit(random);
  for (std::uint32_t k = 0; k <= total; ++k) {
    c.step_ms.push_back(ms);
    if (random() % 3 == 0)
      ms += unit(random) * (random() % 3 == 0 ? 1 : 0.1);
  }
  if (random() % 4 == 0)
    c.step_ms.resize(1 + random() % c.step_ms.size()); // a cap
  return c;
}

verify_plan search(const search_case& c, const length_rules& rules) {
  length_search searcher;
  verify_plan plan;
  searcher.run(spans_of(c.survivals), c.counts, c.step_ms, static_cast<double>(c.survivals.size()),
               rules, plan);
  return plan;
}

constexpr length_rules exact{0, 0, 0};

} // namespace

TEST(length_search, has_no_regret_against_all_allocations) {
  for (std::uint64_t seed = 1; seed <= 20'000; ++seed) {
    std::mt19937_64 random{seed};
    const search_case c = random_case(random);
    const verify_plan plan = search(c, exact);
    const double found = rate_of(c.survivals, plan.lengths, c.step_ms);
    ASSERT_NEAR(found, best_rate(c.survivals, c.counts, c.step_ms), 1e-9) << seed;
    ASSERT_NEAR(found, plan.tokens / plan.step_ms, 1e-9) << seed; // it knows what it does
    ASSERT_EQ(std::accumulate(plan.lengths.begin(), plan.lengths.end(), 0U), plan.drafts) << seed;
    ASSERT_LT(plan.drafts, c.step_ms.size()) << seed;
    for (std::size_t i = 0; i < c.counts.size(); ++i)
      ASSERT_LE(plan.lengths[i], c.counts[i]) << seed;
  }
}

TEST(length_search, finds_the_best_behind_a_number_of_drafts_that_loses) {
  // One draft more is a loss, three are a gain: walking down to the first loss would stop at none.
  const search_case c{{{1, 1, 1}}, {3}, {1, 2.5, 2.6, 2.7}};
  const verify_plan plan = search(c, exact);
  EXPECT_EQ(plan.drafts, 3U);
  EXPECT_EQ(plan.how, verify_plan::kind::all);
}

TEST(length_search, is_never_worse_than_a_uniform_length_or_none_whatever_trimming_must_gain) {
  for (std::uint64_t seed = 1; seed <= 5000; ++seed) {
    std::mt19937_64 random{seed};
    const search_case c = random_case(random);
    const length_rules rules{0.2 * unit(random), 0.1 * unit(random), 1e-6};
    const verify_plan plan = search(c, rules);
    for (std::uint32_t k = 0; k <= 4; ++k) {
      std::vector<std::uint32_t> lengths;
      for (const std::uint32_t count : c.counts)
        lengths.push_back(std::min(k, count));
      ASSERT_GE(plan.tokens / plan.step_ms * (1 + 1e-6), rate_of(c.survivals, lengths, c.step_ms))
          << seed << " k " << k;
    }
    if (plan.how != verify_plan::kind::trimmed)
      continue;
    const verify_plan whole = search(c, {1e9, 0, 1e-6}); // uniform plans only
    ASSERT_GT(plan.tokens / plan.step_ms,
              whole.tokens / whole.step_ms * (1 + rules.gain_min) * (1 - 1e-9));
  }
}

TEST(length_search, orders_ties_by_position_then_sequence) {
  // Each further draft costs, two fit well: the first drafts of the first two sequences.
  const search_case c{{{0.5F, 0.5F}, {0.5F, 0.5F}, {0.5F, 0.5F}}, {2, 2, 2}, {1, 1, 1, 9, 9, 9, 9}};
  const verify_plan plan = search(c, exact);
  EXPECT_EQ(plan.lengths, (std::vector<std::uint32_t>{1, 1, 0}));
  EXPECT_EQ(plan.how, verify_plan::kind::trimmed);
}

TEST(length_search, orders_many_slots_like_few) {
  // Above 64 slots another sort is used: compare with a plain one.
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random{seed};
    search_case c;
    struct slot {
      float a;
      std::uint32_t position, offer;
    };
    std::vector<slot> slots;
    const std::uint32_t n = 50 + static_cast<std::uint32_t>(random() % 200);
    for (std::uint32_t i = 0; i < n; ++i) {
      c.counts.push_back(5);
      double survival = 1;
      std::vector<float>& a = c.survivals.emplace_back();
      for (std::uint32_t j = 0; j < 5; ++j) {
        survival *= std::max(0.05, std::round(unit(random) * 8) / 8); // many ties
        a.push_back(static_cast<float>(survival));
        slots.push_back({a.back(), j, i});
      }
    }
    std::sort(slots.begin(), slots.end(), [](const slot& x, const slot& y) {
      return x.a != y.a                 ? x.a > y.a
             : x.position != y.position ? x.position < y.position
                                        : x.offer < y.offer;
    });
    const std::size_t target = 1 + random() % (5 * n - 1);
    c.step_ms.assign(5 * n + 1, 100);
    std::fill(c.step_ms.begin(), c.step_ms.begin() + static_cast<std::ptrdiff_t>(target) + 1, 1.0);
    const verify_plan plan = search(c, exact);
    std::vector<std::uint32_t> expected(n, 0);
    for (std::size_t k = 0; k < target; ++k)
      ++expected[slots[k].offer];
    ASSERT_EQ(plan.lengths, expected) << seed;
  }
}

TEST(length_search, uses_nothing_at_or_behind_a_broken_survival) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const search_case c{{{nan, 1, 1}, {0.9F, nan, 1}, {0.9F, 0, 0}, {2, 3, -1}, {0.5F, 0.9F, 0.1F}},
                      {3, 3, 3, 3, 3},
                      std::vector<double>(16, 1.0)};
  const verify_plan plan = search(c, {0, 0, 1e-6});
  EXPECT_EQ(plan.lengths, (std::vector<std::uint32_t>{0, 1, 1, 2, 3}));
  EXPECT_NEAR(plan.tokens, 5 + 0.9 + 0.9 + 2 + (0.5 + 0.5 + 0.1), 1e-6); // monotone, at most 1
}

TEST(length_search, takes_nothing_of_nothing) {
  length_search searcher;
  verify_plan plan;
  plan.lengths = {1, 2, 3};
  searcher.run({}, {}, std::vector<double>{1.0}, 0, exact, plan);
  EXPECT_TRUE(plan.lengths.empty());
  EXPECT_EQ(plan.drafts, 0U);
  EXPECT_EQ(plan.how, verify_plan::kind::none);
}

} // namespace di::engine
