// SPDX-License-Identifier: Apache-2.0
// The cost model finds the coefficients that made its data, in noise, among outliers, and where the
// data do not say all; prompt chunks follow from it.
#include "engine/core/step_cost.hpp"
#include "engine/core/step_table.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace di::engine {
namespace {

struct truth {
  double a, b, c;
  double ms(const step_shape& s) const { return a + b * s.rows + c * s.work; }
};

/// A step like those of a rank: some decode rows, now and then a prompt chunk.
step_shape random_shape(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return static_cast<double>(random() % n); };
  step_shape s;
  const auto sequences = 1 + random() % 32;
  for (std::uint64_t i = 0; i < sequences; ++i)
    s.add(1 + below(6), below(4000));
  if (random() % 3 == 0)
    s.add(1 + below(512), below(4000));
  return s;
}

double factor(std::mt19937_64& random, double spread) {
  return std::exp(spread * std::normal_distribution{}(random));
}

const step_shape probe_shapes[] = {{1, 0}, {1, 4000}, {32, 64'000}, {128, 128'000}, {512, 1e6}};

void expect_near(const step_cost& model, const truth& t, double share, const char* what) {
  for (const step_shape& s : probe_shapes)
    EXPECT_NEAR(model.ms(s), t.ms(s), share * t.ms(s)) << what << ": " << model.to_string();
}

} // namespace

TEST(step_cost, recovers_the_coefficients_behind_noisy_steps) {
  const truth machines[] = {{1.5, 0.04, 2e-6}, {0.2, 0.3, 1e-5}, {20, 0.01, 1e-7}, {0.001, 2, 0}};
  for (const truth& t : machines)
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937_64 random{seed};
      step_cost model{{.forget = 0.995}};
      for (int i = 0; i < 1000; ++i) {
        const step_shape s = random_shape(random);
        model.observe(s, t.ms(s) * factor(random, 0.05));
      }
      EXPECT_NEAR(model.b_ms(), t.b, 0.1 * t.b + 0.001 * t.a);
      for (const step_shape& s : {step_shape{20, 40'000}, step_shape{300, 500'000}})
        EXPECT_NEAR(model.ms(s), t.ms(s), 0.04 * t.ms(s)) << model.to_string();
      EXPECT_LT(model.error(), 0.08);
    }
}

TEST(step_cost, shrugs_off_steps_that_something_else_delayed) {
  const truth t{1.5, 0.04, 2e-6};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random{seed};
    step_cost model;
    for (int i = 0; i < 1000; ++i) {
      const step_shape s = random_shape(random);
      const bool delayed = random() % 20 == 0;
      model.observe(s, t.ms(s) * factor(random, 0.03) * (delayed ? 20 : 1));
    }
    expect_near(model, t, 0.15, "5 % of the steps took 20 times as long");
    EXPECT_GT(model.outliers(), 20U);
  }
}

TEST(step_cost, follows_a_machine_that_changes_its_speed) {
  std::mt19937_64 random{3};
  const truth before{1.5, 0.04, 2e-6}, after{6, 0.16, 8e-6};
  step_cost model;
  for (int i = 0; i < 500; ++i) {
    const step_shape s = random_shape(random);
    model.observe(s, before.ms(s) * factor(random, 0.03));
  }
  for (int i = 0; i < 400; ++i) {
    const step_shape s = random_shape(random);
    model.observe(s, after.ms(s) * factor(random, 0.03));
  }
  expect_near(model, after, 0.1, "four times slower");
}

TEST(step_cost, keeps_what_it_knew_while_all_steps_are_alike) {
  const truth t{1.5, 0.04, 2e-6};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random{seed};
    step_cost model;
    for (int i = 0; i < 500; ++i) {
      const step_shape s = random_shape(random);
      model.observe(s, t.ms(s) * factor(random, 0.03));
    }
    step_shape same;
    same.add(16, 1000);
    for (int i = 0; i < 10'000; ++i)
      model.observe(same, t.ms(same) * factor(random, 0.03));
    EXPECT_NEAR(model.ms(same), t.ms(same), 0.03 * t.ms(same));
    for (const step_shape& s : probe_shapes) // directions in which 10,000 steps said nothing
      EXPECT_NEAR(model.ms(s), t.ms(s), 0.5 * t.ms(s)) << model.to_string();
  }
}

TEST(step_cost, is_exact_where_data_that_lie_on_a_line_are) {
  step_cost model;
  for (int i = 0; i < 200; ++i)
    model.observe({8, 8000}, 5);
  EXPECT_NEAR(model.ms({8, 8000}), 5, 0.01);
  step_cost rows_only;
  for (int i = 0; i < 2000; ++i)
    rows_only.observe({static_cast<double>(1 + i % 64), 0}, 2 + 0.5 * (1 + i % 64));
  EXPECT_NEAR(rows_only.a_ms(), 2, 0.02);
  EXPECT_NEAR(rows_only.b_ms(), 0.5, 0.005);
}

TEST(step_cost, never_has_a_negative_coefficient_whatever_it_is_fed) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random{seed};
    step_cost model;
    const double scale = std::pow(10.0, static_cast<double>(random() % 9) - 4);
    for (int i = 0; i < 300; ++i) {
      const step_shape s = random_shape(random);
      // Anything: constant, falling with the rows, unrelated, huge, broken.
      const double t[] = {scale,
                          1000 * scale / s.rows,
                          scale * static_cast<double>(random() % 1000),
                          1e12,
                          -1,
                          std::numeric_limits<double>::quiet_NaN(),
                          std::numeric_limits<double>::infinity(),
                          1e-300};
      model.observe(s, t[random() % std::size(t)]);
      ASSERT_GE(model.a_ms(), 0);
      ASSERT_GE(model.b_ms(), 0);
      ASSERT_GE(model.c_ms(), 0);
      ASSERT_TRUE(std::isfinite(model.ms({100, 1e5})));
    }
  }
}

TEST(step_cost, ignores_measurements_that_make_no_sense) {
  step_cost model;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  model.observe({0, 0}, 1);
  model.observe({1, nan}, 1);
  model.observe({nan, 1}, 1);
  model.observe({1, 1}, nan);
  model.observe({1, 1}, 0);
  model.observe({1, -1}, 1);
  EXPECT_EQ(model.refused(), 6U);
  EXPECT_EQ(model.steps(), 0U);
  EXPECT_EQ(model.a_ms(), step_cost_options{}.a_ms);
}

TEST(step_cost, cuts_a_chunk_that_fits_the_budget_and_no_longer_one) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    std::mt19937_64 random{seed};
    const auto unit = [&] { return static_cast<double>(random() % 1000) / 1000; };
    const step_cost model{{.a_ms = 5 * unit(), .b_ms = unit(), .c_ms = 1e-4 * unit()}};
    const step_shape fixed{static_cast<double>(random() % 64), 1e5 * unit()};
    const double context = 1e4 * unit(), budget = 200 * unit();
    const std::uint32_t n = model.rows_within(budget, fixed, context);
    ASSERT_GE(n, 1U);
    ASSERT_LE(n, chunk_rows_max);
    const auto with = [&](std::uint32_t rows) {
      step_shape s = fixed;
      s.add(rows, context);
      return model.ms(s);
    };
    if (n > 1) {
      EXPECT_LE(with(n), budget * (1 + 1e-9)) << seed;
    }
    if (n < chunk_rows_max) {
      EXPECT_GT(with(n + 1), budget) << seed;
    }
    // More time, more rows; more context or company, fewer.
    EXPECT_GE(model.rows_within(budget * 1.5, fixed, context), n) << seed;
    EXPECT_LE(model.rows_within(budget, fixed, context + 500), n) << seed;
    EXPECT_LE(model.rows_within(budget, {fixed.rows + 5, fixed.work}, context), n) << seed;
  }
}

TEST(step_cost, gives_one_row_without_time_and_all_if_rows_are_free) {
  const step_cost model{{.a_ms = 5, .b_ms = 1, .c_ms = 0}};
  EXPECT_EQ(model.rows_within(0, {}, 0), 1U);
  EXPECT_EQ(model.rows_within(-1, {}, 0), 1U);
  EXPECT_EQ(model.rows_within(std::numeric_limits<double>::quiet_NaN(), {}, 0), 1U);
  EXPECT_EQ(model.rows_within(15, {}, 0), 10U);
  const step_cost free{{.a_ms = 5, .b_ms = 0, .c_ms = 0}};
  EXPECT_EQ(free.rows_within(6, {}, 1000), chunk_rows_max);
  EXPECT_EQ(model.rows_within(1e9, {}, 0), chunk_rows_max);
}

TEST(step_cost, prints_itself) {
  step_cost model{{.a_ms = 1.25, .b_ms = 0.5, .c_ms = 1e-6}};
  EXPECT_EQ(model.to_string(),
            "t = 1.25 ms + 0.5 ms * rows + 1e-06 ms * work (0 steps, error 0.0 %)");
}

TEST(step_table, interpolates_between_what_was_measured_and_goes_on_behind_it) {
  step_table table;
  EXPECT_EQ(table.ms(5), 0);
  table.profile(10, 5);
  EXPECT_EQ(table.ms(1), 5); // no slope known
  EXPECT_EQ(table.ms(99), 5);
  table.profile(20, 7);
  EXPECT_DOUBLE_EQ(table.ms(15), 6);
  EXPECT_DOUBLE_EQ(table.ms(30), 9);
  EXPECT_DOUBLE_EQ(table.ms(5), 4);
  EXPECT_EQ(table.known(), 2U);
  EXPECT_EQ(table.to_string(), "10: 5 ms, 20: 7 ms");
  std::vector<double> walk(40);
  table.fill(1, walk);
  for (std::uint32_t i = 0; i < 40; ++i)
    EXPECT_DOUBLE_EQ(walk[i], table.ms(1 + i));
}

TEST(step_table, is_a_staircase_as_far_as_the_device_pads) {
  step_table table{{.padded_to = 16}};
  table.profile(4, 4);
  table.profile(8, 6);
  table.profile(16, 9);
  table.profile(32, 11);
  EXPECT_EQ(table.ms(1), 4);
  EXPECT_EQ(table.ms(5), 6);
  EXPECT_EQ(table.ms(9), 9);
  EXPECT_EQ(table.ms(16), 9);
  EXPECT_DOUBLE_EQ(table.ms(24), 10);
}

TEST(step_table, never_says_that_a_larger_step_is_faster) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random{seed};
    step_table table{{.padded_to = static_cast<std::uint32_t>(random() % 40)}};
    for (int i = 0; i < 200; ++i) {
      const auto rows = static_cast<std::uint32_t>(1 + random() % 400);
      const double ms = static_cast<double>(1 + random() % 1000) / 10;
      random() % 8 == 0 ? table.profile(rows, ms) : table.observe(rows, ms);
    }
    std::vector<double> curve(600);
    table.fill(1, curve);
    for (std::size_t i = 1; i < curve.size(); ++i)
      ASSERT_GE(curve[i], curve[i - 1]) << seed << " at " << i + 1;
  }
}

TEST(step_table, follows_steps_and_shares_a_change_of_speed) {
  std::mt19937_64 random{5};
  step_table table;
  const auto truth = [](std::uint32_t rows) { return 2 + 0.1 * rows; };
  for (const std::uint32_t rows : {1U, 8U, 16U, 32U, 64U, 128U})
    table.profile(rows, truth(rows));
  for (int i = 0; i < 500; ++i) { // three times slower, seen at few sizes, one wild step in ten
    const auto rows = static_cast<std::uint32_t>(14 + random() % 20);
    table.observe(rows, 3 * truth(rows) * factor(random, 0.05) * (random() % 10 == 0 ? 30 : 1));
  }
  EXPECT_NEAR(table.ms(16), 3 * truth(16), 0.4 * truth(16));
  EXPECT_NEAR(table.ms(32), 3 * truth(32), 0.4 * truth(32));
  EXPECT_GT(table.ms(128), 1.7 * truth(128)); // never seen since
  EXPECT_LT(table.ms(128), 4.5 * truth(128));
  const double before = table.ms(16);
  table.observe(16, std::numeric_limits<double>::quiet_NaN());
  table.observe(16, -1);
  table.observe(0, 1);
  EXPECT_EQ(table.ms(16), before);
}

} // namespace di::engine
