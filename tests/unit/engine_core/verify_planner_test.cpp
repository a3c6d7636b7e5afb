// SPDX-License-Identifier: Apache-2.0
// What the planner makes of times and survivals: when to trim, when not to draft, caps, how it
// learns; and the words of speculation choices.
#include "engine/core/verify_planner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace di::engine {
namespace {

double unit(std::mt19937_64& random) {
  return static_cast<double>(random() % 1'000'001) / 1e6;
}

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
  std::vector<std::vector<float>> survivals;
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
