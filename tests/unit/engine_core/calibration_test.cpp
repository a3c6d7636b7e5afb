// SPDX-License-Identifier: Apache-2.0
// Confidences that lie are found out and corrected; counters and quality numbers are what they say.
#include "engine/core/calibration.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace di::engine {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// Blocks of five drafts whose head says logit z and whose true chance is sigmoid(slope z +
/// offset). All are verified.
void feed(calibration& c, double slope, double offset, int blocks, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  std::normal_distribution<double> normal{1, 1.5};
  for (int i = 0; i < blocks; ++i) {
    std::vector<float> logits(5);
    std::uint32_t accepted = 0;
    bool open = true;
    for (float& z : logits) {
      z = static_cast<float>(normal(random));
      const double chance = sigmoid(slope * static_cast<double>(z) + offset);
      open = open && static_cast<double>(random() % 1'000'000) / 1e6 < chance;
      accepted += open ? 1 : 0;
    }
    c.observe(logits, accepted);
  }
}

} // namespace

TEST(calibration, is_the_sigmoid_until_something_is_seen) {
  calibration c;
  EXPECT_DOUBLE_EQ(c.confidence(0, 0.5), sigmoid(0.5));
  std::vector<float> out(5, -1);
  c.survivals(std::vector<float>{0, 0, 0, 0, 0}, out);
  for (std::size_t k = 0; k < 5; ++k)
    EXPECT_FLOAT_EQ(out[k], std::pow(0.5F, static_cast<float>(k + 1)));
  EXPECT_EQ(c.quality(0).auc, 0.5);
  EXPECT_EQ(c.quality(0).verified, 0U);
}

TEST(calibration, corrects_heads_that_are_too_sure_or_not_sure_enough) {
  for (const auto& [slope, offset] :
       {std::pair{1.0, 0.0}, std::pair{0.5, -0.7}, std::pair{2.0, 0.5}, std::pair{1.0, -1.5}})
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(seed);
      calibration c;
      feed(c, slope, offset, 8000, seed);
      for (std::size_t k = 0; k < 3; ++k) {
        const position_quality q = c.quality(k);
        const double noise =
            std::sqrt(1.0 / static_cast<double>(std::min<std::uint64_t>(q.reached, 5000)));
        EXPECT_LT(q.ece, 0.01 + 2 * noise) << k; // what bins of so few outcomes show by chance
        EXPECT_LE(q.brier, q.brier_raw + 0.005) << k;
        EXPECT_NEAR(q.confidence, q.rate, 0.005 + noise / 2) << k;
        for (double z = -1; z <= 3; z += 0.5)
          EXPECT_NEAR(c.confidence(k, z), sigmoid(slope * z + offset), 0.02 + 2 * noise)
              << k << " " << z;
      }
      EXPECT_NEAR(c.quality(0).slope, slope, 0.35 * slope);
      EXPECT_NEAR(c.quality(0).offset, offset, 0.3);
      if (slope != 1.0 || offset != 0.0) {
        EXPECT_GT(c.quality(0).ece_raw, 0.05);
        EXPECT_LT(c.quality(0).ece, c.quality(0).ece_raw / 2);
      }
    }
}

TEST(calibration, counts_only_outcomes_that_say_something) {
  calibration c;
  c.observe(std::vector<float>{1, 1, 1, 1, 1}, 2); // the third was wrong
  c.observe(std::vector<float>{1, 1}, 2);          // two verified, both right
  const std::uint64_t verified[] = {2, 2, 1, 1, 1}, reached[] = {2, 2, 1, 0, 0},
                      accepted[] = {2, 2, 0, 0, 0};
  for (std::size_t k = 0; k < 5; ++k) {
    const position_quality q = c.quality(k);
    EXPECT_EQ(q.verified, verified[k]) << k;
    EXPECT_EQ(q.reached, reached[k]) << k;
    EXPECT_EQ(q.accepted, accepted[k]) << k;
  }
}

TEST(calibration, measures_error_and_order_as_defined) {
  // Four outcomes at chance 0.5 (one right), four at sigmoid(2) (three right).
  calibration c{1, {.forget = 1, .refit_blocks = 1000}};
  for (int i = 0; i < 4; ++i) {
    c.observe(std::vector<float>{0.1F}, i == 0 ? 1 : 0);
    c.observe(std::vector<float>{2.1F}, i == 0 ? 0 : 1);
  }
  const position_quality q = c.quality(0);
  const double low = sigmoid(0.1F), high = sigmoid(2.1F);
  EXPECT_NEAR(q.ece_raw, 0.5 * std::abs(low - 0.25) + 0.5 * std::abs(high - 0.75), 1e-6);
  EXPECT_NEAR(
      q.brier_raw,
      (1 * (1 - low) * (1 - low) + 3 * low * low + 3 * (1 - high) * (1 - high) + 1 * high * high)
          / 8,
      1e-6);
  // Pairs (right, wrong): 4 x 4; ordered 3 x 3, reversed 1 x 1, ties 3 + 3 half.
  EXPECT_NEAR(q.auc, (9 + 0.5 * 6) / 16.0, 1e-9);
  EXPECT_NEAR(q.rate, 0.5, 1e-9);
}

TEST(calibration, keeps_the_order_of_confidences) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random{seed};
    calibration c{5, {.refit_blocks = 1}};
    for (int i = 0; i < 200; ++i) { // outcomes against the head: low logits are accepted
      std::vector<float> logits(5);
      for (float& z : logits)
        z = static_cast<float>(random() % 2000) / 100 - 10;
      c.observe(logits, logits[0] < 0 ? 5 : 0);
    }
    for (std::size_t k = 0; k < 5; ++k)
      for (double z = -10; z < 10; z += 0.5) {
        EXPECT_GE(c.confidence(k, z + 0.5), c.confidence(k, z));
        EXPECT_TRUE(std::isfinite(c.confidence(k, z)));
      }
  }
}

TEST(calibration, forgets) {
  calibration c{5, {.forget = 0.99}};
  feed(c, 1, 3, 5000, 1);
  EXPECT_GT(c.confidence(0, 0), 0.8);
  feed(c, 1, -3, 1000, 2);
  EXPECT_LT(c.confidence(0, 0), 0.2);
}

TEST(calibration, stays_finite_over_a_very_long_run) {
  calibration c{1, {.forget = 0.9, .refit_blocks = 64}};
  for (int i = 0; i < 100'000; ++i)
    c.observe(std::vector<float>{i % 2 == 0 ? 1.0F : -1.0F}, i % 3 == 0 ? 1 : 0);
  EXPECT_TRUE(std::isfinite(c.quality(0).ece));
  EXPECT_NEAR(c.quality(0).rate, 1.0 / 3, 0.15);
}

TEST(calibration, takes_broken_logits_for_no_confidence) {
  calibration c;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> out(5);
  c.survivals(std::vector<float>{inf, nan, 1, 1, 1}, out);
  EXPECT_NEAR(out[0], 1, 1e-6);
  for (std::size_t k = 1; k < 5; ++k)
    EXPECT_EQ(out[k], 0);
  c.survivals(std::vector<float>{-inf, 1}, out);
  EXPECT_NEAR(out[0], 0, 1e-6);
  EXPECT_EQ(c.confidence(5, 1), 0); // no such position
  c.observe(std::vector<float>{nan, inf, -inf, 1, 1, 1, 1}, 7);
  EXPECT_TRUE(std::isfinite(c.quality(1).brier));
}

TEST(calibration, separates_temperatures) {
  EXPECT_EQ(temperature_bucket(0), 0U);
  EXPECT_EQ(temperature_bucket(0.5), 1U);
  EXPECT_EQ(temperature_bucket(1), 2U);
  EXPECT_EQ(temperature_bucket(1.5), 3U);
  EXPECT_EQ(temperature_bucket(std::numeric_limits<double>::quiet_NaN()), 0U);
}

TEST(calibration, forgets_nothing_over_blocks_without_drafts) {
  calibration c;
  feed(c, 0.5, -1, 2000, 3);
  c.fit();
  const position_quality before = c.quality(0);
  EXPECT_LT(before.slope, 0.8); // it has learned something to forget
  for (int i = 0; i < 100'000; ++i)
    c.observe({}, 0);
  const position_quality after = c.quality(0);
  EXPECT_EQ(after.slope, before.slope);
  EXPECT_EQ(after.offset, before.offset);
  feed(c, 0.5, -1, 1, 4);
  c.fit();
  EXPECT_NEAR(c.quality(0).slope, before.slope, 0.05);
}

} // namespace di::engine
