// SPDX-License-Identifier: Apache-2.0
// Goal: plans are legal at any size, the same when made again, never worse than what is there, at
// least as even as the published algorithm's, and near the best there is. Method: seeds of random
// sizes and loads; small cases against every possible placement.
#include "engine/moe/eplb.hpp"
#include "engine/moe/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>

namespace di::engine {
namespace {

std::vector<float> random_rows(std::mt19937_64& random, std::size_t n) {
  std::vector<float> rows(n);
  const double steep = static_cast<double>(random() % 60) / 10;
  for (float& r : rows)
    r = std::floor(
        static_cast<float>(std::pow(static_cast<double>(random() % 10'000) / 1e4, steep) * 5000));
  return rows;
}

void expect_legal(const std::vector<std::uint32_t>& slots, const load_view& load,
                  const eplb_shape& shape) {
  const std::size_t size = std::size_t{shape.ranks} * shape.slots;
  ASSERT_EQ(slots.size(), size * load.layers);
  for (std::uint32_t layer = 0; layer < load.layers; ++layer) {
    std::vector<std::uint32_t> copies(load.experts);
    for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
      const auto* held = &slots[layer * size + std::size_t{rank} * shape.slots];
      std::vector<std::uint32_t> sorted(held, held + shape.slots);
      std::sort(sorted.begin(), sorted.end());
      for (std::uint32_t s = 0; s < shape.slots; ++s) {
        if (sorted[s] == placement::empty_slot)
          continue;
        ASSERT_LT(sorted[s], load.experts);
        ASSERT_TRUE(s == 0 || sorted[s - 1] != sorted[s]) << "twice on rank " << rank;
        ++copies[sorted[s]];
      }
    }
    for (std::uint32_t e = 0; e < load.experts; ++e)
      ASSERT_GE(copies[e], 1U) << "expert " << e << " is lost";
  }
}

TEST(eplb_property, plans_are_legal_repeatable_and_never_worse) {
  for (std::uint64_t seed = 0; seed < 150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random{seed};
    load_view load;
    load.bins = 1 + static_cast<std::uint32_t>(random() % 6);
    load.layers = 1 + static_cast<std::uint32_t>(random() % 3);
    const auto groups = static_cast<std::uint32_t>(1 + random() % 4);
    load.experts = groups * static_cast<std::uint32_t>(1 + random() % 16);
    eplb_shape shape;
    shape.ranks = 1 + static_cast<std::uint32_t>(random() % 24);
    shape.groups = groups;
    const auto redundant = static_cast<std::uint32_t>(random() % 40);
    shape.slots = slots_per_rank(load.experts, redundant, shape.ranks);
    if (random() % 2) {
      const std::uint32_t nodes = 1 + static_cast<std::uint32_t>(random() % 4);
      for (std::uint32_t r = 0; r < shape.ranks; ++r)
        shape.node_of_rank.push_back(r * nodes / shape.ranks);
    }
    const auto rows = random_rows(random, std::size_t{load.bins} * load.layers * load.experts);
    load.rows = rows;
    const auto plan = plan_experts(load, shape);
    ASSERT_TRUE(plan) << plan.error().render();
    expect_legal(plan->expert_of_slot, load, shape);
    ASSERT_EQ(plan_experts(load, shape)->expert_of_slot, plan->expert_of_slot);
    // From there to other loads, in bounded moves.
    const auto others = random_rows(random, rows.size());
    load.rows = others;
    eplb_shape free = shape;
    free.node_of_rank.clear();
    const eplb_limits limits{static_cast<std::uint32_t>(random() % 20), 0.01};
    const auto next = plan_experts(load, free, limits, plan->expert_of_slot);
    ASSERT_TRUE(next) << next.error().render();
    expect_legal(next->expert_of_slot, load, shape);
    ASSERT_LE(next->moves, limits.moves_max);
    const double before = balance_of(load, shape.ranks, plan->expert_of_slot).peak;
    const double after = balance_of(load, shape.ranks, next->expert_of_slot).peak;
    ASSERT_LE(after, before * (1 + 1e-5));
    if (next->moves == 0) {
      ASSERT_EQ(next->expert_of_slot, plan->expert_of_slot);
    }
    ASSERT_NEAR(next->peak_after, after, 1e-4 * (before + 1));
  }
}

/// Copies that share a rank with another of their expert go; rows split evenly over the ranks that
/// are left. (With both, a rank gets twice the rows of one with a single copy: a split that ranks
/// with one slot per expert cannot have.) @return whether there was one
bool drop_second_copies(std::vector<std::uint32_t>& slots, std::uint32_t per_rank) {
  bool any = false;
  for (std::size_t s = 0; s < slots.size(); ++s)
    for (std::size_t earlier = s / per_rank * per_rank; earlier < s; ++earlier)
      if (slots[earlier] == slots[s] && slots[s] != placement::empty_slot) {
        slots[s] = placement::empty_slot;
        any = true;
      }
  return any;
}

TEST(eplb_property, is_at_least_as_even_as_the_published_algorithm) {
  double ours = 0, theirs = 0, mean = 0;
  int better = 0, cases = 0;
  for (std::uint64_t seed = 0; seed < 1000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random{seed + 5000};
    const std::uint32_t nodes = random() % 3 == 0 ? 2 : 1;
    const std::uint32_t ranks = nodes * (2 + static_cast<std::uint32_t>(random() % 16));
    const std::uint32_t groups = nodes * (1 + static_cast<std::uint32_t>(random() % 3));
    const std::uint32_t experts = groups * (4 + static_cast<std::uint32_t>(random() % 24));
    const std::uint32_t slots =
        slots_per_rank(experts, static_cast<std::uint32_t>(random() % (experts + 1)), ranks);
    const auto rows = random_rows(random, experts);
    const load_view load{1, 1, experts, rows};
    eplb_shape shape{ranks, slots, {}, groups};
    for (std::uint32_t r = 0; r < ranks; ++r)
      shape.node_of_rank.push_back(r * nodes / ranks);
    if (slots * ranks / nodes < experts / nodes || slots > experts / nodes)
      continue;
    const auto plan = plan_experts(load, shape);
    auto published =
        plan_experts_published(rows, 1, ranks * slots, nodes == 1 ? 1 : groups, nodes, ranks);
    ASSERT_TRUE(plan && published);
    const double a = balance_of(load, ranks, plan->expert_of_slot).peak;
    const double b = balance_of(load, ranks, *published).peak;
    const bool legal = !drop_second_copies(*published, slots);
    const double c = balance_of(load, ranks, *published).peak;
    better += a <= b * (1 + 1e-5);
    EXPECT_LE(a, legal ? b * 1.001 : b * 1.04) << experts << " experts, " << ranks << " ranks";
    EXPECT_LE(a, c * (1 + 1e-5)) << experts << " experts, " << ranks << " ranks, " << slots
                                 << " slots, " << nodes << " nodes";
    ours += a;
    theirs += b;
    mean += balance_of(load, ranks, plan->expert_of_slot).mean;
    ++cases;
  }
  std::cout << better << " of " << cases << " at least as even; peak over mean: " << ours / mean
            << " here, " << theirs / mean << " published\n";
  EXPECT_LT(ours, theirs);
  EXPECT_GE(better, cases - cases / 100);
}

/// The lowest peak of any legal placement: every way to give ranks sets of experts.
double best_peak(const load_view& load, std::uint32_t ranks, std::uint32_t slots) {
  const std::uint32_t sets = 1U << load.experts;
  std::vector<std::uint32_t> legal;
  for (std::uint32_t s = 1; s < sets; ++s)
    if (static_cast<std::uint32_t>(__builtin_popcount(s)) <= slots)
      legal.push_back(s);
  double best = HUGE_VAL;
  std::vector<std::uint32_t> pick(ranks);
  const auto visit = [&](auto&& self, std::uint32_t rank, std::size_t from) -> void {
    if (rank == ranks) {
      std::vector<std::uint32_t> flat(ranks * slots, placement::empty_slot);
      std::uint32_t all = 0;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        all |= pick[r];
        for (std::uint32_t e = 0, at = 0; e < load.experts; ++e)
          if (pick[r] >> e & 1)
            flat[r * slots + at++] = e;
      }
      if (all == sets - 1)
        best = std::min(best, balance_of(load, ranks, flat).peak);
      return;
    }
    for (std::size_t i = from; i < legal.size(); ++i) { // ranks are alike: in rising order
      pick[rank] = legal[i];
      self(self, rank + 1, i);
    }
  };
  visit(visit, 0, 0);
  return best;
}

TEST(eplb_property, is_near_the_best_on_small_cases) {
  double ours = 0, best = 0;
  int exact = 0, cases = 0;
  for (std::uint64_t seed = 0; seed < 150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random{seed + 77};
    const std::uint32_t experts = 3 + static_cast<std::uint32_t>(random() % 3);
    const std::uint32_t ranks = 2 + static_cast<std::uint32_t>(random() % 2);
    const std::uint32_t slots =
        slots_per_rank(experts, static_cast<std::uint32_t>(random() % 4), ranks);
    const std::uint32_t bins = 1 + static_cast<std::uint32_t>(random() % 2);
    const auto rows = random_rows(random, std::size_t{bins} * experts);
    const load_view load{bins, 1, experts, rows};
    const auto plan = plan_experts(load, {ranks, slots, {}, 1});
    ASSERT_TRUE(plan);
    const double got = balance_of(load, ranks, plan->expert_of_slot).peak;
    const double lowest = best_peak(load, ranks, slots);
    EXPECT_GE(got, lowest * (1 - 1e-5));
    EXPECT_LE(got, lowest * 1.35 + 1);
    ours += got;
    best += lowest;
    exact += got <= lowest * (1 + 1e-5);
    ++cases;
  }
  std::cout << exact << " of " << cases << " are the best, all together " << ours / best
            << " of it\n";
  EXPECT_LT(ours, best * 1.03);
}

} // namespace
} // namespace di::engine
