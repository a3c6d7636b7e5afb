// SPDX-License-Identifier: Apache-2.0
// Conversions of the number formats of the checkpoint and the caches: bf16, e4m3, e2m1, e8m0.
//
// Decoding is exact; encoding rounds to nearest, ties to even. @source spec/model.md 2.1, 3.2; OCP
// Microscaling formats v1.0. Shared with the CUDA kernels.
#pragma once

#include "kernels/inline.hpp"

#include <bit>
#include <cstdint>

namespace di::kernels {

DI_KERNEL_INLINE float bf16_to_f32(std::uint16_t b) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16);
}

/// Nearest even; every NaN becomes 0x7fc0, so that NaN has the same bits in every build.
DI_KERNEL_INLINE std::uint16_t f32_to_bf16(float x) {
  if (x != x)
    return 0x7fc0;
  const auto u = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}

/// 2^(b - 127); 255 is NaN, 0 is the subnormal 2^-127.
DI_KERNEL_INLINE float e8m0_to_f32(std::uint8_t b) {
  const std::uint32_t normal = static_cast<std::uint32_t>(b) << 23;
  return std::bit_cast<float>(b == 0 ? 0x00400000U : (b == 255 ? 0x7fc00000U : normal));
}

/// The power of two that undoes scale b (b <= 254).
DI_KERNEL_INLINE float e8m0_inverse(std::uint8_t b) {
  return e8m0_to_f32(static_cast<std::uint8_t>(254 - b));
}

/// e4m3 (finite-only variant): 1 sign, 4 exponent (bias 7), 3 mantissa bits; 0x7f and 0xff are NaN.
DI_KERNEL_INLINE float e4m3_to_f32(std::uint8_t b) {
  const std::uint32_t sign = static_cast<std::uint32_t>(b & 0x80U) << 24;
  const std::uint32_t magnitude = b & 0x7fU;
  if (magnitude == 0x7fU)
    return std::bit_cast<float>(0x7fc00000U);
  // As the top bits of an fp32 the value is too small by 2^120; the product is exact.
  const float v = std::bit_cast<float>(magnitude << 20) * 0x1p120F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) | sign);
}

/// The weight reading of e4m3: the two NaN codes, which no checkpoint holds, count as +-480.
DI_KERNEL_INLINE float e4m3_weight_to_f32(std::uint8_t b) {
  const float v = std::bit_cast<float>(static_cast<std::uint32_t>(b & 0x7fU) << 20) * 0x1p120F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v)
                              | (static_cast<std::uint32_t>(b & 0x80U) << 24));
}

/// Saturates at +-448; NaN gives 0x7f.
DI_KERNEL_INLINE std::uint8_t f32_to_e4m3(float x) {
  if (x != x)
    return 0x7f;
  const auto u = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint32_t>((u >> 24) & 0x80U);
  const std::uint32_t m = u & 0x7fffffffU;
  const float a = std::bit_cast<float>(m);
  if (a >= 448.0F)
    return static_cast<std::uint8_t>(sign | 0x7eU);
  if (a < 0x1p-6F) {
    // Subnormal codes count in steps of 2^-9; adding 2^23 rounds to a whole number of them.
    const float steps = a * 512.0F + 8388608.0F;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(steps) & 0xfU));
  }
  const std::uint32_t rounded = (m + 0x7ffffU + ((m >> 20) & 1U)) >> 20;
  return static_cast<std::uint8_t>(sign | (rounded - ((127U - 7U) << 3)));
}

/// e2m1: sign in bit 3, magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6.
DI_KERNEL_INLINE float e2m1_to_f32(std::uint8_t code) {
  const std::uint32_t magnitude = code & 7U;
  // 1 exponent-biased layout: codes 2..7 are (1 + m/2) 2^(e-1); 0 and 1 are 0 and 1/2.
  const float v = std::bit_cast<float>(magnitude << 22) * 0x1p126F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v)
                              | (static_cast<std::uint32_t>(code & 8U) << 28));
}

/// Saturates at +-6; ties go to the even code. NaN gives +0.
DI_KERNEL_INLINE std::uint8_t f32_to_e2m1(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const float a = std::bit_cast<float>(u & 0x7fffffffU);
  if (a != a)
    return 0;
  const unsigned code = static_cast<unsigned>(a > 0.25F) + static_cast<unsigned>(a >= 0.75F)
                        + static_cast<unsigned>(a > 1.25F) + static_cast<unsigned>(a >= 1.75F)
                        + static_cast<unsigned>(a > 2.5F) + static_cast<unsigned>(a >= 3.5F)
                        + static_cast<unsigned>(a > 5.0F);
  return static_cast<std::uint8_t>(code | ((u >> 28) & 8U));
}

/// Smallest power of two >= amax / limit as an e8m0 byte, computed from the fp32 bits.
/// @param inverse_limit  fp32(1/448) or fp32(1/6)
DI_KERNEL_INLINE std::uint8_t e8m0_scale(float amax, float inverse_limit) {
  const auto u = std::bit_cast<std::uint32_t>(amax * inverse_limit);
  const std::uint32_t byte = ((u >> 23) & 0xffU) + static_cast<std::uint32_t>((u & 0x7fffffU) != 0);
  return static_cast<std::uint8_t>(byte > 254 ? 254 : byte);
}

inline constexpr float act_floor = 1e-4F;              ///< least amax of act_quant
inline constexpr float index_floor = 6.0F * 0x1p-126F; ///< least amax of fp4_32 rows
inline constexpr float main_floor = 6.0F * 0x1p-9F;    ///< least amax of fp4_16 rows
inline constexpr float inverse_448 = 1.0F / 448.0F;
inline constexpr float inverse_6 = 1.0F / 6.0F;

} // namespace di::kernels
