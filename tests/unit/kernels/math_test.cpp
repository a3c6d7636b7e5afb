// SPDX-License-Identifier: Apache-2.0
#include "kernels/math.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace di::kernels {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// |have - want| in units in the last place of the fp32 nearest to want.
double ulps(float have, double want) {
  const auto nearest = static_cast<float>(want);
  const float next = std::nextafter(std::fabs(nearest), infinity);
  return std::fabs(static_cast<double>(have) - want)
         / (static_cast<double>(next) - static_cast<double>(std::fabs(nearest)));
}

TEST(math, exp_is_within_one_ulp_of_the_double_one) {
  double worst = 0;
  for (float x = -87.0F; x < 88.7F; x += 0.00137F)
    worst = std::max(worst, ulps(math::exp(scalar_f32{x}).v, std::exp(static_cast<double>(x))));
  EXPECT_LT(worst, 1.0);
}

TEST(math, exp_goes_to_zero_and_infinity_and_keeps_nan) {
  EXPECT_EQ(math::exp(scalar_f32{0.0F}).v, 1.0F);
  EXPECT_EQ(math::exp(scalar_f32{-infinity}).v, 0.0F);
  EXPECT_EQ(math::exp(scalar_f32{-104.0F}).v, 0.0F);
  EXPECT_GT(math::exp(scalar_f32{-103.0F}).v, 0.0F) << "subnormal results are not flushed";
  EXPECT_EQ(math::exp(scalar_f32{88.73F}).v, infinity);
  EXPECT_EQ(math::exp(scalar_f32{infinity}).v, infinity);
  EXPECT_TRUE(std::isnan(math::exp(scalar_f32{std::nanf("")}).v));
}

TEST(math, log_is_within_two_ulps_of_the_double_one) {
  double worst = 0;
  for (float x = 1e-30F; x < 1e30F; x *= 1.00093F)
    worst = std::max(worst, ulps(math::log(scalar_f32{x}).v, std::log(static_cast<double>(x))));
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(math::log(scalar_f32{1.0F}).v, 0.0F);
}

TEST(math, softplus_keeps_relative_precision_from_tiny_to_linear) {
  for (float x = -80.0F; x < 40.0F; x += 0.0173F) {
    const double want =
        x > 20.0F ? static_cast<double>(x) : std::log1p(std::exp(static_cast<double>(x)));
    ASSERT_NEAR(math::softplus(scalar_f32{x}).v / want, 1.0, 1e-6) << x;
  }
}

TEST(math, sigmoid_and_silu_are_right_at_both_ends) {
  for (float x = -30.0F; x < 30.0F; x += 0.0131F) {
    const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    ASSERT_NEAR(math::sigmoid(scalar_f32{x}).v / want, 1.0, 1e-6) << x;
    ASSERT_NEAR(math::silu(scalar_f32{x}).v, want * static_cast<double>(x), 1e-6 * std::fabs(x))
        << x;
  }
  EXPECT_EQ(math::sigmoid(scalar_f32{-infinity}).v, 0.0F);
  EXPECT_EQ(math::sigmoid(scalar_f32{infinity}).v, 1.0F);
}

TEST(math, sine_and_cosine_are_rounded_once_up_to_huge_angles) {
  // A function of the fp32 angle: the double result is right to far more than fp32.
  int off = 0, count = 0;
  for (float a = 1e-3F; a < 2.0e9F; a *= 1.0007F) {
    for (const float x : {a, -a}) {
      const math::sin_cos_f32 t = math::sin_cos(x);
      const double s = std::sin(static_cast<double>(x)), c = std::cos(static_cast<double>(x));
      ASSERT_LE(ulps(t.sin, s), 0.51) << x;
      ASSERT_LE(ulps(t.cos, c), 0.51) << x;
      off += t.sin != static_cast<float>(s) || t.cos != static_cast<float>(c) ? 1 : 0;
      ++count;
    }
  }
  EXPECT_LT(off, count / 1000 + 1);
  EXPECT_EQ(math::sin_cos(0.0F).sin, 0.0F);
  EXPECT_EQ(math::sin_cos(0.0F).cos, 1.0F);
  EXPECT_TRUE(std::isnan(math::sin_cos(infinity).sin));
}

} // namespace
} // namespace di::kernels
