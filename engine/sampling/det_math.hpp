// SPDX-License-Identifier: Apache-2.0
// exp and log that give the same bits on every machine: fixed polynomials over IEEE add, multiply
// and divide.
//
// No fma and no libm: the five basic operations are exact by standard on every instruction set, and
// the build forbids contraction, so vector and scalar code agree bit for bit without asking whether
// the machine has an fma unit (where it has not, std::fma is a library call).
#pragma once

#include <bit>
#include <cstdint>

namespace di::engine {

namespace detail {
inline constexpr double log2_e = 1.4426950408889634;
inline constexpr double ln2_high =
    0x1.62e42feep-1; // 32 significant bits: exact when multiplied by an exponent
inline constexpr double ln2_low = 0x1.a39ef35793c76p-33;
inline constexpr double round_magic =
    0x1.8p52; // adding it rounds to an integer, found in the low bits
} // namespace detail

namespace detail {

/// e^x for x in [-708, 709], without branches, so that loops over it become vector code.
constexpr double exp_inside(double x) noexcept {
  const double shifted = x * log2_e + round_magic;
  const double k = shifted - round_magic;
  const double r = (x - k * ln2_high) - k * ln2_low; // |r| <= ln(2) / 2
  double q = 1.0 / 6227020800.0;                     // Taylor, to r^13 / 13!
  q = q * r + 1.0 / 479001600.0;
  q = q * r + 1.0 / 39916800.0;
  q = q * r + 1.0 / 3628800.0;
  q = q * r + 1.0 / 362880.0;
  q = q * r + 1.0 / 40320.0;
  q = q * r + 1.0 / 5040.0;
  q = q * r + 1.0 / 720.0;
  q = q * r + 1.0 / 120.0;
  q = q * r + 1.0 / 24.0;
  q = q * r + 1.0 / 6.0;
  q = q * r + 0.5;
  const double y = 1.0 + (r + r * r * q);
  // The low bits of `shifted` hold k in two's complement: move it into the exponent of 2^k.
  const double scale = std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) + 1023) << 52);
  return y * scale;
}

} // namespace detail

/// e^x.
///
/// @param x   any double but NaN; below -708 the result is 0, above 709 infinity
/// @return    within 1 ulp of the exact value (test: det_math.stays_within_its_stated_error)
constexpr double det_exp(double x) noexcept {
  if (x < -708.0)
    return 0.0;
  return x > 709.0 ? __builtin_inf() : detail::exp_inside(x);
}

/// Natural logarithm.
///
/// @param x   positive, finite, normal (pre-condition)
/// @return    within 2 ulp of the exact value
constexpr double det_log(double x) noexcept {
  constexpr std::uint64_t sqrt_half = 0x3FE6A09E667F3BCDU; // bits of sqrt(1/2)
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const std::int64_t k = static_cast<std::int64_t>(bits - sqrt_half) >> 52;
  const double m =
      std::bit_cast<double>(bits - (static_cast<std::uint64_t>(k) << 52)); // [sqrt(1/2), sqrt(2))
  // ln m = 2 atanh(s) with s = f / (2 + f); written as f - (f^2/2 - s (f^2/2 + R)) so that f, which
  // is exact, leads.
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = 2.0 / 23.0; // series of 2 atanh(s) / s - 2
  p = p * z + 2.0 / 21.0;
  p = p * z + 2.0 / 19.0;
  p = p * z + 2.0 / 17.0;
  p = p * z + 2.0 / 15.0;
  p = p * z + 2.0 / 13.0;
  p = p * z + 2.0 / 11.0;
  p = p * z + 2.0 / 9.0;
  p = p * z + 2.0 / 7.0;
  p = p * z + 2.0 / 5.0;
  p = p * z + 2.0 / 3.0;
  const double half_square = 0.5 * f * f;
  const double tail = half_square - s * (half_square + z * p);
  const auto e = static_cast<double>(k);
  return e * detail::ln2_high + (f - (tail - e * detail::ln2_low));
}

/// Gumbel noise of a random word: -log(-log u) with u = (word + 1/2) / 2^32. In [-3.14, 22.88],
/// rising with the word.
constexpr double gumbel(std::uint32_t word) noexcept {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -det_log(-det_log(u));
}

/// No noise is above this.
inline constexpr double gumbel_max = 22.9;

/// A cheap upper bound of gumbel(word): -log u >= 1 - u, and the leading zeros of ~word bound 1 - u
/// from below.
constexpr double gumbel_bound(std::uint32_t word) noexcept {
  const std::uint32_t from_top = ~word;
  return from_top == 0 ? gumbel_max : (std::countl_zero(from_top) + 1) * 0.6931471806 + 1e-6;
}

} // namespace di::engine
