// SPDX-License-Identifier: Apache-2.0
#include "kernels/formats.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace di::kernels {
namespace {

/// The code whose value is nearest to x, ties to the even code; `last` is the largest magnitude
/// code.
template <class Decode>
std::uint8_t nearest_code(double x, int last, std::uint8_t sign_bit, Decode decode) {
  const double size = std::fmin(std::fabs(x), 1000.0); // beyond all codes: differences stay exact
  int best = 0;
  for (int c = 1; c <= last; ++c) {
    const double now = std::fabs(decode(static_cast<std::uint8_t>(c)) - size);
    const double before = std::fabs(decode(static_cast<std::uint8_t>(best)) - size);
    if (now < before || (now == before && c % 2 == 0))
      best = c;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? sign_bit : 0));
}

/// Calls f for bf16 values and for their close neighbours (which cover ties and their sides).
template <class F>
void for_many_floats(F f) {
  for (std::uint32_t b = 0; b < 0x10000; b += 3) {
    const float x = bf16_to_f32(static_cast<std::uint16_t>(b));
    if (std::isnan(x) || std::isinf(x))
      continue;
    for (const float y : {x, std::nextafter(x, 0.0F), std::nextafter(x, 1e30F)})
      f(y);
  }
}

TEST(formats, e4m3_rounds_to_the_nearest_code_and_saturates) {
  for_many_floats([](float x) {
    const std::uint8_t want = nearest_code(
        x, 0x7e, 0x80, [](std::uint8_t c) { return static_cast<double>(e4m3_to_f32(c)); });
    ASSERT_EQ(f32_to_e4m3(x), want) << x;
  });
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_EQ(f32_to_e4m3(std::nanf("")), 0x7f);
}

TEST(formats, e2m1_rounds_to_the_nearest_code_and_saturates) {
  for_many_floats([](float x) {
    const std::uint8_t want =
        nearest_code(x, 7, 8, [](std::uint8_t c) { return static_cast<double>(e2m1_to_f32(c)); });
    ASSERT_EQ(f32_to_e2m1(x), want) << x;
  });
}

TEST(formats, e4m3_values_are_those_of_the_format) {
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9F);
  EXPECT_EQ(e4m3_to_f32(0x07), 7 * 0x1p-9F);
  EXPECT_EQ(e4m3_to_f32(0x08), 0x1p-6F);
  EXPECT_EQ(e4m3_to_f32(0x38), 1.0F);
  EXPECT_EQ(e4m3_to_f32(0x7e), 448.0F);
  EXPECT_EQ(e4m3_to_f32(0xfe), -448.0F);
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0x7f)));
  EXPECT_TRUE(std::signbit(e4m3_to_f32(0x80)));
  EXPECT_EQ(e4m3_weight_to_f32(0xff), -480.0F);
}

TEST(formats, e8m0_reaches_both_ends) {
  EXPECT_EQ(e8m0_to_f32(0), 0x1p-127F);
  EXPECT_EQ(e8m0_to_f32(127), 1.0F);
  EXPECT_EQ(e8m0_to_f32(254), 0x1p127F);
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
  for (int b = 0; b < 255; ++b)
    EXPECT_EQ(e8m0_to_f32(static_cast<std::uint8_t>(b))
                  * e8m0_inverse(static_cast<std::uint8_t>(b)),
              1.0F);
}

TEST(formats, scale_is_the_least_power_of_two_that_covers_the_maximum) {
  EXPECT_EQ(e8m0_scale(448.0F, inverse_448), 127);
  EXPECT_EQ(e8m0_scale(449.0F, inverse_448), 128);
  EXPECT_EQ(e8m0_scale(index_floor, inverse_6), 1);
  EXPECT_EQ(e8m0_scale(std::numeric_limits<float>::infinity(), inverse_6), 254);
}

TEST(formats, bf16_rounds_to_even_and_has_one_nan) {
  EXPECT_EQ(f32_to_bf16(1.0F + 0x1p-8F), 0x3f80) << "tie, even below";
  EXPECT_EQ(f32_to_bf16(1.0F + 3 * 0x1p-8F), 0x3f82) << "tie, even above";
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(std::nanf("")), 0x7fc0);
  EXPECT_EQ(f32_to_bf16(-std::nanf("")), 0x7fc0);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x00018000U)), 0x0002) << "subnormals are kept";
}

} // namespace
} // namespace di::kernels
