// SPDX-License-Identifier: Apache-2.0
// Prompt chunks fit the budget, cuts and caps; over whole random runs nobody starves.
#include "engine/core/chunk_planner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

namespace di::engine {
namespace {

using rows_list = std::vector<std::uint32_t>;

step_cost cost_of(double a, double b, double c) {
  return step_cost{{.a_ms = a, .b_ms = b, .c_ms = c}};
}

rows_list plan(const std::vector<prompt_need>& prompts, const chunk_rules& rules,
               const step_cost& cost = cost_of(1, 0.1, 0), const step_shape& fixed = {}) {
  rows_list rows{7, 7, 7};
  const std::uint32_t sum = plan_chunks(prompts, fixed, cost, rules, rows);
  EXPECT_EQ(sum, std::accumulate(rows.begin(), rows.end(), 0U));
  EXPECT_EQ(rows.size(), prompts.size());
  return rows;
}

} // namespace

TEST(chunk_planner, gives_the_oldest_prompt_what_fits_and_the_rest_to_the_next) {
  // 1 ms + 0.1 ms a row: 200 rows in 21 ms.
  EXPECT_EQ(plan({{500, 0}, {500, 0}}, {21, 1000, 0, 16}), (rows_list{200, 0}));
  EXPECT_EQ(plan({{120, 0}, {500, 0}, {9, 0}}, {21, 1000, 0, 16}), (rows_list{120, 80, 0}));
  EXPECT_EQ(plan({{500, 0}, {500, 0}}, {21, 1000, 64, 16}), (rows_list{64, 64}));
  EXPECT_EQ(plan({{500, 0}, {500, 0}}, {21, 100, 64, 16}), (rows_list{64, 36}));
  EXPECT_EQ(plan({{500, 0}, {500, 0}}, {21, 0, 64, 16}), (rows_list{0, 0}));
  EXPECT_EQ(plan({}, {21, 100, 64, 16}), rows_list{});
}

TEST(chunk_planner, goes_by_rows_alone_without_a_budget) {
  EXPECT_EQ(plan({{500, 0}, {500, 0}}, {0, 600, 0, 16}), (rows_list{500, 100}));
  EXPECT_EQ(plan({{100'000, 0}}, {0, 100'000, 0, 16}), (rows_list{chunk_rows_max}));
  EXPECT_EQ(plan({{100'000, 0}}, {1e9, 100'000, 0, 16}), (rows_list{chunk_rows_max}));
}

TEST(chunk_planner, counts_decode_rows_and_context) {
  const step_cost cost = cost_of(1, 0.1, 1e-4);
  step_shape decodes;
  decodes.add(100, 0);
  EXPECT_LT(plan({{500, 0}}, {21, 1000, 0, 16}, cost, decodes)[0], 120U);
  EXPECT_LT(plan({{500, 5000}}, {21, 1000, 0, 16}, cost)[0],
            plan({{500, 0}}, {21, 1000, 0, 16}, cost)[0] / 3);
}

TEST(chunk_planner, ends_chunks_where_a_snapshot_is_wanted) {
  EXPECT_EQ(plan({{500, 0, 128}, {500, 0, 40}}, {0, 1000, 0, 16}), (rows_list{128, 40}));
  EXPECT_EQ(plan({{500, 0, 4}, {30, 0}}, {21, 1000, 0, 16}), (rows_list{4, 30}));
}

TEST(chunk_planner, never_leaves_the_oldest_without_rows) {
  // Every row is dearer than the budget.
  const step_cost dear = cost_of(0, 1, 0);
  EXPECT_EQ(plan({{500, 0}, {500, 0}}, {0.5, 1000, 0, 16}, dear), (rows_list{16, 0}));
  EXPECT_EQ(plan({{3, 0}, {500, 0}}, {0.5, 1000, 0, 16}, dear), (rows_list{3, 0}));
  EXPECT_EQ(plan({{500, 0}}, {0.5, 1000, 0, 0}, dear), (rows_list{1}));
}

TEST(chunk_planner, lets_prompts_take_as_long_as_the_rest_of_a_step_beyond_its_budget) {
  // 300 ms whatever is in the step, and 0.5 ms a row: 16 rows a step would take a minute for 3,000.
  const step_cost cost = cost_of(300, 0.5, 0);
  EXPECT_EQ(plan({{3000, 0}}, {100, 4000, 0, 16}, cost), (rows_list{600}));
  EXPECT_EQ(plan({{3000, 0}}, {100, 256, 0, 16}, cost), (rows_list{256}));
  EXPECT_EQ(plan({{3000, 0}}, {700, 4000, 0, 16}, cost), (rows_list{800}));
  step_shape decodes;
  decodes.add(200, 0); // 400 ms
  EXPECT_EQ(plan({{3000, 0}}, {100, 4000, 0, 16}, cost, decodes), (rows_list{800}));
}

TEST(chunk_planner, starves_neither_prompts_nor_decoding_in_random_runs) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    std::mt19937_64 random{seed};
    const auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
    const step_cost cost =
        cost_of(0.1 + below(50) / 10.0, 0.01 + below(100) / 100.0, below(20) * 1e-6);
    const chunk_rules rules{static_cast<double>(1 + below(200)), 64 + below(512),
                            below(2) * (16 + below(256)), 1 + below(32)};
    struct prompt {
      prompt_need need;
      std::uint64_t bound; // the step in which it must be done
    };
    std::deque<prompt> waiting;
    std::uint64_t step = 0;
    std::uint32_t arrivals = 40;
    const std::uint32_t least = std::min(
        {rules.chunk_min, rules.room, rules.chunk_max > 0 ? rules.chunk_max : chunk_rows_max});
    while (arrivals > 0 || !waiting.empty()) {
      for (std::uint32_t n = below(3); n > 0 && arrivals > 0; --n, --arrivals) {
        prompt_need need{1 + below(below(8) == 0 ? 3000 : 200), below(1000), 0};
        std::uint64_t steps = 0; // at `least` rows a step, each prompt's rest a step of its own
        for (const prompt& p : waiting)
          steps += (p.need.rows + least - 1) / least;
        waiting.push_back({need, step + steps + (need.rows + least - 1) / least});
      }
      std::vector<prompt_need> needs;
      for (const prompt& p : waiting)
        needs.push_back(p.need);
      step_shape decodes;
      for (std::uint32_t n = below(64); n > 0; --n)
        decodes.add(1, below(3000));
      rows_list rows;
      const std::uint32_t sum = plan_chunks(needs, decodes, cost, rules, rows);
      ASSERT_LE(sum, rules.room) << seed;
      step_shape all = decodes, least_chunk = decodes;
      for (std::size_t i = 0; i < rows.size(); ++i)
        all.add(rows[i], needs[i].context);
      if (!needs.empty())
        least_chunk.add(std::min(least, needs[0].rows), needs[0].context);
      // Those who decode wait for the budget, as long as they take, or the oldest prompt's least.
      ASSERT_LE(cost.ms(all),
                std::max({rules.step_ms, 2 * cost.ms(decodes), cost.ms(least_chunk)}) * (1 + 1e-9))
          << seed;
      ++step;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        ASSERT_LE(rows[i], waiting[i].need.rows);
        waiting[i].need.rows -= rows[i];
        waiting[i].need.context += rows[i];
        if (waiting[i].need.rows == 0) {
          ASSERT_LE(step, waiting[i].bound) << seed;
        }
      }
      std::erase_if(waiting, [](const prompt& p) { return p.need.rows == 0; });
      for (const prompt& p : waiting)
        ASSERT_LT(step, p.bound) << seed;
    }
  }
}

} // namespace di::engine
