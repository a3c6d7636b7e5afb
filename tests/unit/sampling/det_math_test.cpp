// SPDX-License-Identifier: Apache-2.0
// Known answers of the noise, stated errors of exp and log, equal bits of the vector widths.
#include "engine/sampling/det_math.hpp"
#include "engine/sampling/exact_mass.hpp"
#include "engine/sampling/philox.hpp"
#include "engine/sampling/row_scan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace di::engine {
namespace {

using words = std::array<std::uint32_t, 4>;

TEST(philox, gives_the_published_answers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
            (words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
            (words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(philox, addresses_tokens_by_id_position_stream_and_choice) {
  EXPECT_EQ(noise_words({42, 5, 0}, 68 / 4),
            (words{0xCFE5BA33, 0x2F286018, 0x32B57B9B, 0xAE4BD765}));
  EXPECT_EQ(noise_words({7ULL << 32 | 9, 5, 3}, 1, noise_stream::residual),
            philox4x32({1, 5, 3, 3}, {9, 7}));
}

// Error in units of the last place of the exact value.
double ulps(double got, long double exact) {
  int exponent = 0;
  std::frexp(static_cast<double>(exact), &exponent);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - exact)
                             / std::ldexp(1.0L, exponent - 53));
}

TEST(det_math, stays_within_its_stated_error) {
  std::mt19937_64 random{1};
  std::uniform_real_distribution<double> exponent{-700, 700}, near{-1, 1}, unit{0, 1};
  double exp_worst = 0, log_worst = 0;
  for (int i = 0; i < 100'000; ++i) {
    for (const double x : {exponent(random), near(random), -40 * unit(random)})
      exp_worst = std::max(exp_worst, ulps(det_exp(x), std::exp(static_cast<long double>(x))));
    for (const double x : {std::exp(exponent(random)), unit(random) + 1e-300, 1 + near(random) / 16,
                           0.5 + 4 * unit(random)})
      log_worst = std::max(log_worst, ulps(det_log(x), std::log(static_cast<long double>(x))));
  }
  EXPECT_LT(exp_worst, 1.0);
  EXPECT_LT(log_worst, 2.0);
  RecordProperty("exp_ulp", std::to_string(exp_worst));
  RecordProperty("log_ulp", std::to_string(log_worst));
  std::cout << "worst error: exp " << exp_worst << " ulp, log " << log_worst << " ulp\n";
}

TEST(det_math, has_exact_values_at_the_borders) {
  EXPECT_EQ(det_exp(0.0), 1.0);
  EXPECT_EQ(det_exp(-1e300), 0.0);
  EXPECT_EQ(det_exp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(det_exp(710.0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(det_log(1.0), 0.0);
}

TEST(det_math, keeps_noise_in_its_range_and_below_its_cheap_bound) {
  EXPECT_GT(gumbel(0), -3.14);
  EXPECT_LT(gumbel(~0U), gumbel_max - 0.02);
  std::mt19937 random{2};
  for (int i = 0; i < 60'000; ++i) {
    const auto word = static_cast<std::uint32_t>(random());
    for (const std::uint32_t w :
         {word, ~(word >> (i % 32)), ~(1U << (i % 32)), ~((1U << (i % 32)) - 1)})
      ASSERT_LE(gumbel(w), gumbel_bound(w)) << w;
  }
  for (std::uint32_t w = 0; w < 100'000; ++w)
    ASSERT_LE(gumbel(~(w + 1)), gumbel(~w));
}

TEST(exact_mass, is_the_smallest_integer_that_is_enough) {
  EXPECT_EQ(mass_target(0.5, 10), 5U);
  EXPECT_EQ(mass_target(0.5, 11), 6U);
  EXPECT_EQ(mass_target(0.1, 10), 2U);  // the double 0.1 is above one tenth
  EXPECT_EQ(mass_target(0.9, 10), 10U); // and 0.9 above nine tenths
  EXPECT_EQ(mass_target(1e-300, 1ULL << 57), 1U);
  EXPECT_EQ(mass_target(std::nextafter(1.0, 0.0), 1ULL << 57), (1ULL << 57) - 16);
}

TEST(row_scan, gives_the_same_bits_at_every_vector_width) {
  std::mt19937 random{3};
  std::normal_distribution<float> normal{0, 6};
  for (const std::size_t vocab : {1U, 3U, 15U, 16U, 255U, 256U, 257U, 1000U, 5003U}) {
    std::vector<float> row(vocab);
    for (float& x : row)
      x = random() % 50 == 0 ? -std::numeric_limits<float>::infinity() : normal(random);
    row[vocab / 2] = 20;
    const auto variants = detail::row_variants();
    const auto& plain = variants.front();
    std::vector<float> maxima(vocab / 256 + 1), expected(vocab / 256 + 1);
    std::array<double, 256> lanes{}, expected_lanes{};
    EXPECT_TRUE(plain.block_maxima(row, expected.data()));
    plain.lane_sums(row, 20, expected_lanes.data());
    std::vector<std::uint64_t> sums(mass_buckets), by_token(mass_buckets);
    for (const float x : row)
      if (x / 0.7 >= -3)
        by_token[mass_bucket(x / 0.7, 20 / 0.7)] += token_mass(x / 0.7, 20 / 0.7);
    for (const auto& v : variants) {
      EXPECT_TRUE(v.block_maxima(row, maxima.data()));
      EXPECT_EQ(maxima, expected) << v.name;
      lanes.fill(0);
      v.lane_sums(row, 20, lanes.data());
      EXPECT_EQ(lanes, expected_lanes) << v.name << ' ' << vocab;
      sums.assign(mass_buckets, 0);
      v.add_masses(row, 0.7, 20 / 0.7, -3, sums.data());
      EXPECT_EQ(sums, by_token) << v.name;
    }
  }
}

// The noise pass may only say no where no token of the block can win, and must say it often enough
// to be of use.
TEST(row_scan, spares_only_blocks_that_cannot_win) {
  std::mt19937 random{4};
  std::normal_distribution<float> normal{0, 2};
  int spared = 0;
  for (std::uint32_t round = 0; round < 400; ++round) {
    std::vector<float> block(row_block);
    for (float& x : block)
      x = normal(random);
    const noise_place place{random(), static_cast<std::uint32_t>(random()), round % 3};
    const std::uint32_t first = (round % 7) * 256;
    double best = -100;
    for (std::uint32_t i = 0; i < row_block; ++i)
      best = std::max(best, block[i] / 0.8 + gumbel(noise_words(place, (first + i) / 4)[i % 4]));
    for (const auto& v : detail::row_variants()) {
      EXPECT_TRUE(v.block_can_win(block.data(), 0.8, best, place, first)) << v.name;
      EXPECT_FALSE(v.block_can_win(block.data(), 0.8, best + 4.5, place, first)) << v.name;
    }
    const auto& plain = detail::row_variants().front();
    spared += plain.block_can_win(block.data(), 0.8, best + 0.7, place, first) ? 0 : 1;
  }
  EXPECT_GT(spared, 100);
}

TEST(row_scan, orders_buckets_like_logits) {
  EXPECT_EQ(mass_bucket(3, 3), 0U);
  EXPECT_EQ(mass_bucket(-std::numeric_limits<double>::infinity(), 3), mass_buckets - 1);
  std::size_t last = 0;
  for (double x = 3; x > -60; x -= 0.001) {
    ASSERT_GE(mass_bucket(x, 3), last);
    last = mass_bucket(x, 3);
    ASSERT_TRUE(last < mass_buckets - 1 || token_mass(x, 3) == 0) << x;
  }
}

TEST(row_scan, notices_nan_and_infinity_at_every_place) {
  for (const auto& v : detail::row_variants())
    for (const std::size_t at : {0U, 15U, 16U, 255U, 256U, 300U})
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        std::vector<float> row(301, 1.0F), maxima(2);
        EXPECT_TRUE(v.block_maxima(row, maxima.data()));
        row[at] = bad;
        EXPECT_FALSE(v.block_maxima(row, maxima.data())) << v.name << ' ' << at;
      }
}

TEST(row_scan, weighs_the_maximum_with_exactly_two_to_the_forty) {
  EXPECT_EQ(token_mass(3.5, 3.5), std::uint64_t{1} << 40);
  EXPECT_EQ(token_mass(-100, 3.5), 0U);
  EXPECT_EQ(token_mass(-std::numeric_limits<double>::infinity(), 3.5), 0U);
  EXPECT_EQ(token_mass(0, 1), 404487723187U); // floor(2^40 / e)
}

} // namespace
} // namespace di::engine
