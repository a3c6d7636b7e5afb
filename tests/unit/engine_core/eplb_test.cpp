// SPDX-License-Identifier: Apache-2.0
// Expert load balancing: the published example, limits on moves, nodes, and what is refused.
#include "engine/moe/eplb.hpp"
#include "engine/moe/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace di::engine {
namespace {

// The worked example of github.com/deepseek-ai/EPLB: 2 layers, 12 experts, 16 replicas, 4 groups,
// 2 nodes, 8 GPUs.
const std::vector<float> example{90, 132, 40,  61, 104, 165, 39,  4,   73,  56, 183, 86,
                                 20, 107, 104, 64, 19,  197, 187, 157, 172, 86, 16,  27};

TEST(eplb, gives_the_published_example) {
  const auto plan = plan_experts_published(example, 2, 16, 4, 2, 8);
  ASSERT_TRUE(plan) << plan.error().render();
  EXPECT_EQ(*plan,
            (std::vector<std::uint32_t>{5, 6,  5, 7, 8, 4,  3, 4, 10, 9, 10, 2, 0, 1, 11, 1,
                                        7, 10, 6, 8, 6, 11, 8, 9, 2,  4, 5,  1, 5, 0, 3,  1}));
  const auto other = plan_experts_published(example, 2, 16, 3, 2, 8); // no multiple: one node
  const auto global = plan_experts_published(example, 2, 16, 1, 1, 8);
  ASSERT_TRUE(other && global);
  EXPECT_EQ(*other, *global);
}

TEST(eplb, balances_the_published_example_as_well) {
  const load_view load{1, 2, 12, example};
  for (const std::uint32_t groups : {4U, 1U}) {
    const auto published = plan_experts_published(example, 2, 16, groups, groups == 4 ? 2 : 1, 8);
    eplb_shape shape{8, 2, {0, 0, 0, 0, 1, 1, 1, 1}, groups};
    const auto plan = plan_experts(load, shape);
    ASSERT_TRUE(published && plan);
    EXPECT_LE(plan->peak_after, balance_of(load, 8, *published).peak * (1 + 1e-6));
    EXPECT_NEAR(plan->peak_after, balance_of(load, 8, plan->expert_of_slot).peak, 1e-2);
    if (groups == 1)
      continue;
    for (std::size_t layer = 0; layer < 2; ++layer) // a group's experts are on one node
      for (std::uint32_t g = 0; g < 4; ++g) {
        std::vector<std::size_t> nodes;
        for (std::size_t s = 0; s < 16; ++s)
          if (plan->expert_of_slot[layer * 16 + s] / 3 == g)
            nodes.push_back(s / 8);
        ASSERT_FALSE(nodes.empty());
        EXPECT_EQ(nodes.front(), nodes.back());
      }
  }
}

TEST(eplb, moves_no_more_than_allowed_and_only_for_a_gain) {
  std::mt19937_64 random{21};
  constexpr std::uint32_t layers = 4, experts = 24, ranks = 6, slots = 5;
  std::vector<float> rows(layers * experts);
  for (float& r : rows)
    r = static_cast<float>(std::pow(static_cast<double>(random() % 1000) / 1000, 4) * 1000);
  const load_view load{1, layers, experts, rows};
  const eplb_shape shape{ranks, slots, {}, 1};
  std::vector<std::uint32_t> now(layers * ranks * slots);
  for (std::size_t s = 0; s < now.size(); ++s)
    now[s] = static_cast<std::uint32_t>(s % (ranks * slots) % experts);
  const double before = balance_of(load, ranks, now).peak;
  double last = before;
  for (const std::uint32_t moves : {0U, 1U, 2U, 5U, 12U, 40U, ~0U}) {
    const auto plan = plan_experts(load, shape, {moves, 0}, now);
    ASSERT_TRUE(plan);
    EXPECT_LE(plan->moves, moves);
    std::uint32_t counted = 0;
    for (std::size_t r = 0; r < now.size(); r += slots)
      for (std::size_t s = r; s < r + slots; ++s)
        counted +=
            plan->expert_of_slot[s] != placement::empty_slot
            && std::find(&now[r], &now[r] + slots, plan->expert_of_slot[s]) == &now[r] + slots;
    EXPECT_EQ(counted, plan->moves);
    EXPECT_NEAR(plan->peak_before, before, before * 1e-5);
    EXPECT_NEAR(plan->peak_after, balance_of(load, ranks, plan->expert_of_slot).peak,
                before * 1e-5);
    EXPECT_LE(plan->peak_after, last * (1 + 1e-6)) << moves << " moves";
    last = plan->peak_after;
    const auto dear = plan_experts(load, shape, {moves, 0.9}, now); // nothing gains 90 %
    ASSERT_TRUE(dear);
    EXPECT_EQ(dear->moves, 0U);
    EXPECT_EQ(dear->expert_of_slot, now);
  }
  EXPECT_LT(last, before * 0.8);
  const auto plan = plan_experts(load, shape, {}, now);
  const auto again = plan_experts(load, shape, {~0U, 0.02}, plan->expert_of_slot);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->moves, 0U); // a plan is followed once
}

TEST(eplb, lowers_the_peaks_of_bins_that_one_sum_hides) {
  // Two pairs of experts that are hot at different times: one sum sees all alike.
  const std::vector<float> rows{9, 1, 9, 1, 1, 9, 1, 9};
  const std::vector<float> sum{10, 10, 10, 10};
  const eplb_shape shape{2, 2, {}, 1};
  const load_view bins{2, 1, 4, rows};
  const auto plan = plan_experts(bins, shape);
  const auto blind = plan_experts({1, 1, 4, sum}, shape);
  ASSERT_TRUE(plan && blind);
  EXPECT_EQ(balance_of(bins, 2, plan->expert_of_slot).peak, 20);
  EXPECT_EQ(balance_of(bins, 2, blind->expert_of_slot).peak, 36) << "the sum shows nothing";
}

TEST(eplb, leaves_slots_empty_rather_than_hold_an_expert_twice) {
  const std::vector<float> rows{5, 1, 1, 1};
  const eplb_shape two_nodes{2, 3, {0, 1}, 2}; // two experts and three slots on each node
  const auto plan = plan_experts({1, 1, 4, rows}, two_nodes);
  ASSERT_TRUE(plan);
  EXPECT_EQ(
      std::count(plan->expert_of_slot.begin(), plan->expert_of_slot.end(), placement::empty_slot),
      2);
  EXPECT_EQ(plan->moves, 4U);
}

TEST(eplb, refuses_what_makes_no_sense) {
  const std::vector<float> rows(8, 1);
  const auto code = [&](const load_view& load, const eplb_shape& shape,
                        std::span<const std::uint32_t> now = {}) {
    const auto plan = plan_experts(load, shape, {}, now);
    return plan ? ec::ok : plan.error().code;
  };
  const load_view good{1, 2, 4, rows};
  EXPECT_EQ(code(good, {2, 2, {}, 1}), ec::ok);
  EXPECT_EQ(code(good, {0, 2, {}, 1}), ec::bad_argument);
  EXPECT_EQ(code(good, {2, 1, {}, 1}), ec::limit_exceeded);
  EXPECT_EQ(code(good, {2, 5, {}, 1}), ec::limit_exceeded);
  EXPECT_EQ(code(good, {2, 2, {0}, 1}), ec::bad_shape);
  EXPECT_EQ(code(good, {2, 2, {}, 3}), ec::bad_argument);
  EXPECT_EQ(code({1, 2, 3, rows}, {2, 2, {}, 1}), ec::bad_shape);
  EXPECT_EQ(code({1, 0, 4, {}}, {2, 2, {}, 1}), ec::bad_argument);
  EXPECT_EQ(code(good, {2, 2, {}, 1}, std::vector<std::uint32_t>{0, 1, 2}), ec::bad_shape);
  const std::vector<std::uint32_t> twice{0, 0, 1, 2, 0, 1, 2, 3}, missing{0, 1, 2, 1, 0, 1, 2, 3};
  EXPECT_EQ(code(good, {2, 2, {}, 1}, twice), ec::bad_argument);
  EXPECT_EQ(code(good, {2, 2, {}, 1}, missing), ec::bad_argument);
  for (const float bad : {-1.0F, std::nanf(""), HUGE_VALF}) {
    std::vector<float> wrong = rows;
    wrong[5] = bad;
    EXPECT_EQ(code({1, 2, 4, wrong}, {2, 2, {}, 1}), ec::bad_argument);
  }
  EXPECT_FALSE(plan_experts_published(rows, 2, 3, 1, 1, 2));
  EXPECT_FALSE(plan_experts_published(rows, 0, 4, 1, 1, 2));
}

} // namespace
} // namespace di::engine
