// SPDX-License-Identifier: Apache-2.0
// Sixteen fp32 lanes, one face for three instruction sets. The including file is compiled once per
// set with DI_ISA = portable | avx2 | avx512; everything lies in a namespace of that name, so that
// code of one set is never linked into another.
//
// Face: f32x16 and i32x16 as kernels/math.hpp wants them, and
//   load/store of 16 floats, load_bf16/store_bf16 (nearest even, NaN = 0x7fc0),
//   load_bytes/store_bytes e4m3_256th(p)  16 weight codes, times 2^-8 (the NaN codes read as 480)
//   e2m1_table(b), e2m1_split(p, table, even, odd)  32 fp4 codes in 16 bytes, times scale byte b
//   tree_sum(v), tree_sum4(a, b, c, d, out)  the closing sum of the contract
#pragma once

#include "kernels/cpu/e2m1_scaled.hpp"
#include "kernels/formats.hpp"
#include "kernels/math.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(DI_ISA_AVX512)
#define DI_ISA avx512
#include "kernels/cpu/vec_avx512.hpp"
#elif defined(DI_ISA_AVX2)
#define DI_ISA avx2
#include "kernels/cpu/vec_avx2.hpp"
#else
#define DI_ISA portable
#include "kernels/cpu/vec_portable.hpp"
#endif

namespace di::kernels::DI_ISA {

inline constexpr std::int64_t lane_count = 16;

DI_KERNEL_INLINE std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

DI_KERNEL_INLINE std::int64_t most(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

/// The first n of 16 floats, zero beyond.
DI_KERNEL_INLINE f32x16 load_first(const float* p, std::int64_t n) {
  if (n >= lane_count)
    return f32x16::load(p);
  alignas(64) float tmp[lane_count] = {};
  std::memcpy(tmp, p, static_cast<std::size_t>(n) * sizeof(float));
  return f32x16::load(tmp);
}

DI_KERNEL_INLINE void store_first(float* p, f32x16 v, std::int64_t n) {
  if (n >= lane_count)
    return v.store(p);
  alignas(64) float tmp[lane_count];
  v.store(tmp);
  std::memcpy(p, tmp, static_cast<std::size_t>(n) * sizeof(float));
}

DI_KERNEL_INLINE f32x16 load_bf16_first(const std::uint16_t* p, std::int64_t n) {
  if (n >= lane_count)
    return load_bf16(p);
  alignas(64) std::uint16_t tmp[lane_count] = {};
  std::memcpy(tmp, p, static_cast<std::size_t>(n) * sizeof(std::uint16_t));
  return load_bf16(tmp);
}

DI_KERNEL_INLINE void store_bf16_first(std::uint16_t* p, f32x16 v, std::int64_t n) {
  if (n >= lane_count)
    return store_bf16(p, v);
  alignas(64) std::uint16_t tmp[lane_count];
  store_bf16(tmp, v);
  std::memcpy(p, tmp, static_cast<std::size_t>(n) * sizeof(std::uint16_t));
}

/// The value rounded to bf16 and back.
DI_KERNEL_INLINE f32x16 through_bf16(f32x16 v) {
  return from_bits(bf16_high_bits(v));
}

DI_KERNEL_INLINE f32x16 absolute(f32x16 v) {
  return from_bits(bits(v) & i32x16::set(0x7fffffff));
}

DI_KERNEL_INLINE f32x16 negated(f32x16 v) {
  return from_bits(bits(v) + i32x16::set(INT32_MIN));
}

/// All ones where v < 0, else zero.
DI_KERNEL_INLINE i32x16 negative_mask(i32x16 v) {
  return shift_right<31>(v);
}

/// Sixteen scale bytes (e8m0) as floats: 0 is the subnormal 2^-127, 255 NaN.
DI_KERNEL_INLINE f32x16 load_e8m0(const std::uint8_t* p) {
  const i32x16 b = load_bytes(p);
  const i32x16 ends = negative_mask(b - i32x16::set(1)) | negative_mask(i32x16::set(254) - b);
  return from_bits(shift_left<23>(b) | (ends & i32x16::set(0x00400000)));
}

/// Sixteen e4m3 values, NaN codes as NaN.
DI_KERNEL_INLINE f32x16 load_e4m3(const std::uint8_t* p) {
  const i32x16 magnitude = load_bytes(p) & i32x16::set(0x7f);
  const i32x16 nan = negative_mask(i32x16::set(0x7e) - magnitude) & i32x16::set(0x7fc00000);
  const f32x16 v = e4m3_256th(p) * f32x16::set(256.0F);
  return from_bits(bits(v) | nan);
}

} // namespace di::kernels::DI_ISA
