// SPDX-License-Identifier: Apache-2.0
// The plan is the best there is: compared with all possible ones on small cases. And its rules:
// prefixes, ties, caps, when to trim, when not to draft.
#include "engine/core/verify_planner.hpp"

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

verify_offer varlen(std::span<const float> survivals) {
  return {
      {speculation_mode::varlen, 0}, static_cast<std::uint32_t>(survivals.size()), 0, survivals};
}

verify_planner linear_planner(double a, double b, double draft_ms = 0,
                              verify_planner_options options = {}) {
  options.warmup_blocks = options.explore_every = 0; // has tests of its own
  verify_planner planner{options};
  for (std::uint32_t rows = 1; rows <= 1024; rows *= 2)
    planner.profile_step(rows, a + b * rows);
  if (draft_ms > 0)
    for (std::uint32_t n = 1; n <= 256; n *= 2)
      planner.profile_draft(n, draft_ms);
  return planner;
}

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

TEST(verify_planner, verifies_all_where_rows_are_cheap_and_none_where_they_cost) {
  const std::vector<float> a{0.8F, 0.64F, 0.5F, 0.4F, 0.3F};
  const std::vector<verify_offer> offers(8, varlen(a));
  auto cheap = linear_planner(10, 0.001);
  const verify_plan& all = cheap.choose(offers, 0, 8);
  EXPECT_EQ(all.how, verify_plan::kind::all);
  EXPECT_EQ(all.drafts, 40U);
  EXPECT_NEAR(all.tokens, 8 * (1 + 2.64), 1e-5);
  EXPECT_NEAR(all.step_ms, 10.048, 1e-3);
  auto costly = linear_planner(0.001, 1);
  EXPECT_EQ(costly.choose(offers, 0, 8).how, verify_plan::kind::none);
  EXPECT_EQ(costly.plans(verify_plan::kind::none), 1U);
}

TEST(verify_planner, trims_sequences_that_are_unlikely_to_go_on) {
  const std::vector<float> sure{0.98F, 0.96F, 0.94F, 0.92F, 0.9F}, vague{0.3F, 0.1F, 0.03F, 0, 0};
  std::vector<verify_offer> offers;
  for (int i = 0; i < 32; ++i)
    offers.push_back(varlen(i % 2 == 0 ? sure : vague));
  auto planner = linear_planner(10, 0.1);
  const verify_plan& plan = planner.choose(offers, 0, 32);
  EXPECT_EQ(plan.how, verify_plan::kind::trimmed);
  for (std::size_t i = 0; i < 32; ++i)
    EXPECT_EQ(plan.lengths[i], i % 2 == 0 ? 5U : 0U) << i;
}

TEST(verify_planner, verifies_all_until_it_knows_what_rows_cost) {
  const std::vector<float> a{0.5F, 0.25F};
  const std::vector<verify_offer> offers(4, varlen(a));
  verify_planner planner{{.warmup_blocks = 0, .explore_every = 0}};
  EXPECT_TRUE(planner.wants_drafts(4, 0, 0));
  EXPECT_EQ(planner.choose(offers, 0, 4).drafts, 8U);
  EXPECT_EQ(planner.choose(offers, 0, 4).step_ms, 0);
  planner.observe_step(12, 5);
  EXPECT_EQ(planner.choose(offers, 0, 4).drafts, 8U);
  planner.observe_step(4, 1); // a steep slope: now it does
  EXPECT_EQ(planner.choose(offers, 0, 4).drafts, 0U);
}

TEST(verify_planner, gives_requests_what_they_ask_for) {
  const std::vector<float> a{0.9F, 0.8F, 0.7F};
  std::vector<verify_offer> offers(4, varlen(a));
  offers[0].wanted = {speculation_mode::off, 0};
  offers[1].wanted = {speculation_mode::fixed, 2};
  offers[2].wanted = {speculation_mode::fixed, 5};
  offers[2].limit = 1; // tokens left
  auto costly = linear_planner(0.001, 1);
  const verify_plan& plan = costly.choose(offers, 0, 3);
  EXPECT_EQ(plan.lengths, (std::vector<std::uint32_t>{0, 2, 1, 0}));
  EXPECT_EQ(plan.drafts, 3U);
  EXPECT_NEAR(plan.tokens, 4 + 1.7 + 0.9, 1e-5);
}

TEST(verify_planner, stays_within_the_rows_of_a_step) {
  const std::vector<float> a{1, 1, 1, 1, 1};
  std::vector<verify_offer> offers(8, varlen(a));
  verify_planner_options options;
  for (std::uint32_t cap = 1; cap < 80; ++cap) {
    options.rows_max = cap;
    auto planner = linear_planner(10, 0.001, 0, options);
    EXPECT_EQ(planner.choose(offers, 7, 8).drafts, cap < 15 ? 0 : std::min(cap - 15, 40U)) << cap;
    verify_planner blind{options};
    EXPECT_EQ(blind.choose(offers, 7, 8).drafts, cap < 15 ? 0 : std::min(cap - 15, 40U)) << cap;
    for (verify_offer& o : offers)
      o.wanted = {speculation_mode::fixed, 5};
    EXPECT_EQ(planner.choose(offers, 7, 8).drafts, cap < 15 ? 0 : std::min(cap - 15, 40U)) << cap;
    for (verify_offer& o : offers)
      o.wanted = {speculation_mode::varlen, 0};
  }
}

TEST(verify_planner, counts_what_context_costs_per_row) {
  const std::vector<float> a{0.5F, 0.4F, 0.3F};
  std::vector<verify_offer> offers(8, varlen(a));
  auto planner = linear_planner(10, 0.05);
  planner.set_context_cost(1e-4);
  EXPECT_EQ(planner.choose(offers, 0, 8).how, verify_plan::kind::all);
  for (verify_offer& o : offers)
    o.context = 100'000; // a row costs 10 ms more
  EXPECT_EQ(planner.choose(offers, 0, 8).how, verify_plan::kind::none);
}

TEST(verify_planner, stops_drafting_where_it_loses_and_tries_again_now_and_then) {
  const std::vector<float> a{0.5F, 0.25F, 0.12F, 0.06F, 0.03F};
  const std::vector<verify_offer> offers(32, varlen(a));
  auto planner = linear_planner(1, 1, 20);
  ASSERT_TRUE(planner.wants_drafts(32, 0, 0)); // nothing known about the drafts yet
  planner.choose(offers, 0, 32);
  std::vector<std::uint32_t> tried;
  for (std::uint32_t step = 1; step <= 10'000; ++step)
    if (planner.wants_drafts(32, 0, 0)) {
      tried.push_back(step);
      // The step that it tries has drafts, or there would be nothing to learn; but not many.
      EXPECT_EQ(planner.choose(offers, 0, 32).drafts, 8 * 5U);
    }
  EXPECT_FALSE(planner.drafting());
  ASSERT_GE(tried.size(), 5U);
  EXPECT_EQ(tried[0], 256U);
  EXPECT_EQ(tried[1] - tried[0], 512U);
  EXPECT_EQ(tried.back() - tried[tried.size() - 2], 2048U);
  EXPECT_EQ(planner.skipped(), 10'000 - tried.size());
  // Few sequences on the same machine: one row more costs half a step, drafts are as bad.
  auto small = linear_planner(100, 1, 2);
  ASSERT_TRUE(small.wants_drafts(1, 0, 0));
  small.choose({offers.data(), 1}, 0, 1);
  EXPECT_TRUE(small.wants_drafts(1, 0, 0));
}

TEST(verify_planner, feeds_draft_layers_only_before_it_tries_them) {
  const std::vector<float> a{0.1F};
  const std::vector<verify_offer> offers(32, varlen(a));
  verify_planner_options options;
  options.feed_before = 24;
  auto planner = linear_planner(1, 1, 20, options);
  EXPECT_TRUE(planner.wants_feed()); // drafting
  planner.wants_drafts(32, 0, 0);
  planner.choose(offers, 0, 32);
  std::uint32_t fed = 0;
  bool before = true;
  for (std::uint32_t step = 0; step < 10'000; ++step) {
    if (planner.wants_drafts(32, 0, 0)) {
      EXPECT_TRUE(before) << step; // the step before it fed its rows
      planner.choose(offers, 0, 32);
    }
    before = planner.wants_feed();
    fed += before ? 1 : 0;
  }
  EXPECT_GT(fed, 100U);
  EXPECT_LT(fed, 300U);
}

TEST(verify_planner, verifies_its_first_blocks_in_full_whatever_their_confidences_say) {
  const std::vector<float> low{0.01F, 0.001F, 0.0005F}, high{0.9F, 0.8F, 0.7F};
  verify_planner planner{{.explore_every = 0}};
  for (std::uint32_t rows = 1; rows <= 64; rows *= 2)
    planner.profile_step(rows, 1.0 * rows); // drafts would have to be sure to pay
  std::vector<verify_offer> offers(8, varlen(low));
  for (int step = 0; step < 10; ++step) {
    const bool drafts = planner.wants_drafts(8, 0, 0);
    EXPECT_EQ(drafts, step % 4 != 3) << step; // some without, to learn what those take
    if (drafts) {
      EXPECT_EQ(planner.choose(offers, 0, 8).how, verify_plan::kind::all) << step;
    }
  }
  EXPECT_FALSE(planner.wants_drafts(8, 0, 0));
  EXPECT_EQ(planner.choose(offers, 0, 8).how, verify_plan::kind::none);
}

TEST(verify_planner, verifies_all_now_and_then_so_that_no_position_goes_without_outcomes) {
  const std::vector<float> a{0.9F, 0.02F, 0.01F};
  verify_planner planner{{.warmup_blocks = 0, .explore_every = 10}};
  for (std::uint32_t rows = 1; rows <= 64; rows *= 2)
    planner.profile_step(rows, 10 + 1.0 * rows);
  const std::vector<verify_offer> offers(4, varlen(a));
  for (int i = 1; i <= 30; ++i)
    EXPECT_EQ(planner.choose(offers, 0, 4).drafts, i % 10 == 0 ? 12U : 4U) << i;
}

TEST(verify_planner, learns_that_drafts_lose_though_it_began_with_them) {
  // 4 sequences, a profile of nothing: sizes are seen as they come. Each row costs.
  const std::vector<float> a{0.5F, 0.25F, 0.1F};
  const std::vector<verify_offer> offers(4, varlen(a));
  const auto steps_with_drafts = [&](double fixed_ms, double row_ms, double draft_ms) {
    verify_planner planner;
    int drafted = 0;
    for (int step = 0; step < 600; ++step) {
      std::uint32_t rows = 4;
      if (planner.wants_drafts(4, 0, 0)) {
        rows += planner.choose(offers, 0, 4).drafts;
        planner.observe_draft(4, draft_ms);
        drafted += step >= 100 ? 1 : 0;
      }
      planner.observe_step(rows, fixed_ms + row_ms * rows);
    }
    return drafted;
  };
  EXPECT_LT(steps_with_drafts(1, 1, 2), 10);        // of 500
  EXPECT_GT(steps_with_drafts(10, 0.01, 0.2), 490); // rows are nearly free
}

TEST(verify_planner, tries_over_several_steps_when_it_has_few_sequences) {
  const std::vector<float> a{0.1F, 0.01F};
  const verify_offer offer = varlen(a);
  auto planner = linear_planner(1, 1, 20);
  planner.wants_drafts(1, 0, 0);
  planner.choose({&offer, 1}, 0, 1);
  std::vector<std::uint32_t> tried;
  for (std::uint32_t step = 1; step <= 300; ++step)
    if (planner.wants_drafts(1, 0, 0)) {
      tried.push_back(step);
      EXPECT_EQ(planner.choose({&offer, 1}, 0, 1).drafts, 2U);
    }
  EXPECT_EQ(tried, (std::vector<std::uint32_t>{256, 257, 258, 259, 260, 261, 262, 263}));
}

TEST(verify_planner, drafts_again_as_soon_as_the_load_falls) {
  const std::vector<float> a{0.8F, 0.64F, 0.5F, 0.4F, 0.3F};
  const std::vector<verify_offer> offers(64, varlen(a));
  auto planner = linear_planner(10, 1, 5);
  ASSERT_TRUE(planner.wants_drafts(64, 0, 0));
  planner.choose(offers, 0, 64);
  EXPECT_FALSE(planner.wants_drafts(64, 0, 0));
  EXPECT_TRUE(planner.wants_drafts(2, 0, 0));
}

TEST(verify_planner, needs_a_gain_to_start_drafting_again) {
  const std::vector<float> a{0.5F};
  const std::vector<verify_offer> offers(10, varlen(a));
  // With drafts: 15 tokens in t + d; without: 10 in t. Even at d = t / 2.
  const auto wants = [&](double gain) {
    verify_planner planner{{.gain_on = 0.05, .warmup_blocks = 0, .forget = 1}};
    planner.profile_step(1, 100);
    planner.profile_step(1000, 100.0001);
    planner.choose(offers, 0, 10);
    planner.profile_draft(10, 100); // a clear loss
    EXPECT_FALSE(planner.wants_drafts(10, 0, 0));
    // 64 bins: what 0.5 counts as is 0.5078.
    planner.profile_draft(10, 100 * (15.078 / 10 / (1 + gain) - 1));
    return planner.wants_drafts(10, 0, 0);
  };
  EXPECT_FALSE(wants(-0.01));
  EXPECT_FALSE(wants(0.04));
  EXPECT_TRUE(wants(0.06));
}

TEST(verify_planner, does_not_draft_for_nobody) {
  auto planner = linear_planner(1, 1);
  EXPECT_FALSE(planner.wants_drafts(0, 5, 3));
  EXPECT_EQ(planner.choose({}, 17, 0).drafts, 0U);
}

TEST(verify_planner, learns_from_steps_what_the_profile_got_wrong) {
  const std::vector<float> a{0.6F, 0.3F, 0.2F, 0.1F, 0.05F};
  const std::vector<verify_offer> offers(16, varlen(a));
  auto planner = linear_planner(10, 0.0001); // claims that rows are free
  EXPECT_EQ(planner.choose(offers, 0, 16).how, verify_plan::kind::all);
  for (int i = 0; i < 400; ++i) { // each costs a tenth of a step
    const auto rows = 16 + planner.choose(offers, 0, 16).drafts;
    planner.observe_step(rows, 10 + 1.0 * rows);
    planner.observe_step(16, 10 + 1.0 * 16);
  }
  EXPECT_LE(planner.choose(offers, 0, 16).drafts, 16U);
}

TEST(verify_planner, plans_the_same_for_the_same_offers) {
  std::mt19937_64 random{9};
  lists survivals;
  std::vector<verify_offer> offers;
  for (int i = 0; i < 40; ++i) {
    std::vector<float>& s = survivals.emplace_back();
    float product = 1;
    for (int j = 0; j < 5; ++j)
      s.push_back(product *= static_cast<float>(unit(random)));
  }
  for (const auto& s : survivals)
    offers.push_back(varlen(s));
  auto a = linear_planner(10, 0.2), b = linear_planner(10, 0.2);
  b.choose({offers.data(), 3}, 5, 3); // what was planned before does not matter
  EXPECT_EQ(a.choose(offers, 0, 40).lengths, b.choose(offers, 0, 40).lengths);
}

TEST(speculation_choice, reads_and_writes_the_same_words) {
  for (const char* word : {"off", "fixed:1", "fixed:5", "fixed:16", "varlen"}) {
    const auto choice = parse_speculation(word);
    ASSERT_TRUE(choice.ok()) << word;
    EXPECT_EQ(to_string(*choice), word);
    EXPECT_EQ(*speculation_from_code(speculation_code(*choice)), *choice);
  }
  for (const char* word :
       {"", "Off", "fixed", "fixed:", "fixed:0", "fixed:17", "fixed:05x", "auto"})
    EXPECT_FALSE(parse_speculation(word).ok()) << word;
  EXPECT_FALSE(speculation_from_code(-2).ok());
  EXPECT_FALSE(speculation_from_code(17).ok());
}

} // namespace di::engine
