// SPDX-License-Identifier: Apache-2.0
// The integer side of top_p: how much mass is enough.
#pragma once

#include <bit>
#include <cstdint>

namespace di::engine {

/// ceil(p * total), exact.
///
/// @param p       (0, 1)
/// @param total   below 2^58
constexpr std::uint64_t mass_target(double p, std::uint64_t total) noexcept {
  __extension__ using wide = unsigned __int128;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(p);
  const auto exponent = static_cast<int>(bits >> 52); // p is positive
  const std::uint64_t fraction = bits & 0xFFFFFFFFFFFFFU;
  const std::uint64_t mantissa = exponent == 0 ? fraction : fraction | 0x10000000000000U;
  const int shift = 1075 - (exponent == 0 ? 1 : exponent); // p = mantissa / 2^shift, shift >= 53
  if (shift >= 112)                                        // the product is below 2^111
    return 1;
  const wide product = static_cast<wide>(mantissa) * total;
  const wide whole = product >> shift;
  return static_cast<std::uint64_t>(whole) + (whole << shift == product ? 0 : 1);
}

} // namespace di::engine
