// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes in two AVX2 registers (with FMA and F16C). See kernels/cpu/vec.hpp.
#pragma once

#include <immintrin.h>

namespace di::kernels::avx2 {

struct i32x16 {
  __m256i lo, hi;

  static DI_KERNEL_INLINE i32x16 set(std::int32_t x) {
    return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
  }
};

DI_KERNEL_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}

DI_KERNEL_INLINE i32x16 operator-(i32x16 a, i32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}

DI_KERNEL_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}

DI_KERNEL_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}

template <int N>
DI_KERNEL_INLINE i32x16 shift_left(i32x16 a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}

template <int N>
DI_KERNEL_INLINE i32x16 shift_right(i32x16 a) {
  return {_mm256_srai_epi32(a.lo, N), _mm256_srai_epi32(a.hi, N)};
}

template <int N>
DI_KERNEL_INLINE i32x16 shift_right_logical(i32x16 a) {
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}

struct f32x16 {
  __m256 lo, hi;

  using integer = i32x16;

  static DI_KERNEL_INLINE f32x16 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static DI_KERNEL_INLINE f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

  static DI_KERNEL_INLINE f32x16 load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }

  DI_KERNEL_INLINE void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
};

DI_KERNEL_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

DI_KERNEL_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

DI_KERNEL_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

DI_KERNEL_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

DI_KERNEL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

DI_KERNEL_INLINE f32x16 square_root(f32x16 a) {
  return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)};
}

DI_KERNEL_INLINE f32x16 vmax(f32x16 a, f32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

DI_KERNEL_INLINE f32x16 vmin(f32x16 a, f32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

DI_KERNEL_INLINE i32x16 bits(f32x16 a) {
  return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}

DI_KERNEL_INLINE f32x16 from_bits(i32x16 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}

DI_KERNEL_INLINE f32x16 select_gt(f32x16 a, f32x16 b, f32x16 t, f32x16 f) {
  return {_mm256_blendv_ps(f.lo, t.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)),
          _mm256_blendv_ps(f.hi, t.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}

DI_KERNEL_INLINE i32x16 select_gt(f32x16 a, f32x16 b, i32x16 t, i32x16 f) {
  return bits(select_gt(a, b, from_bits(t), from_bits(f)));
}

DI_KERNEL_INLINE i32x16 select_nan(f32x16 a, i32x16 t, i32x16 f) {
  const f32x16 ft = from_bits(t), ff = from_bits(f);
  return bits(f32x16{_mm256_blendv_ps(ff.lo, ft.lo, _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
                     _mm256_blendv_ps(ff.hi, ft.hi, _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))});
}

DI_KERNEL_INLINE f32x16 to_float(i32x16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

DI_KERNEL_INLINE __m128i load128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}

DI_KERNEL_INLINE f32x16 load_bf16(const std::uint16_t* p) {
  return from_bits(shift_left<16>(
      i32x16{_mm256_cvtepu16_epi32(load128(p)), _mm256_cvtepu16_epi32(load128(p + 8))}));
}

/// bf16 bits in the upper half of each lane
DI_KERNEL_INLINE i32x16 bf16_high_bits(f32x16 a) {
  const i32x16 u = bits(a);
  const i32x16 odd = shift_right_logical<16>(u) & i32x16::set(1);
  const i32x16 r = (u + i32x16::set(0x7fff) + odd) & i32x16::set(static_cast<int>(0xffff0000U));
  return select_nan(a, i32x16::set(0x7fc00000), r);
}

DI_KERNEL_INLINE void store_bf16(std::uint16_t* p, f32x16 a) {
  const i32x16 h = shift_right_logical<16>(bf16_high_bits(a));
  // The pack works within 128-bit halves: quarters come out 0, 2, 1, 3.
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(h.lo, h.hi), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}

DI_KERNEL_INLINE i32x16 load_words(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}

DI_KERNEL_INLINE void store_words(void* p, i32x16 a) {
  auto* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, a.lo);
  _mm256_storeu_si256(q + 1, a.hi);
}

/// 16 bytes, zero-extended
DI_KERNEL_INLINE i32x16 load_bytes(const std::uint8_t* p) {
  return {_mm256_cvtepu8_epi32(load128(p)), _mm256_cvtepu8_epi32(_mm_srli_si128(load128(p), 8))};
}

DI_KERNEL_INLINE void store_bytes(std::uint8_t* p, i32x16 a) {
  const i32x16 m = a & i32x16::set(0xff);
  const __m256i w = _mm256_permute4x64_epi64(_mm256_packus_epi32(m.lo, m.hi), 0xd8);
  const __m128i b = _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), b);
}

DI_KERNEL_INLINE f32x16 e4m3_256th(const std::uint8_t* p) {
  const __m256i w = _mm256_cvtepi8_epi16(load128(p));
  const __m256i h =
      _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

struct e2m1_table {
  __m256 magnitudes;

  explicit DI_KERNEL_INLINE e2m1_table(std::uint8_t scale)
      : magnitudes(_mm256_load_ps(e2m1_scaled.value[scale])) {}

  /// The low four bits of each lane.
  DI_KERNEL_INLINE __m256 value(__m256i code) const {
    const __m256i sign =
        _mm256_and_si256(_mm256_slli_epi32(code, 28), _mm256_set1_epi32(INT32_MIN));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, code), _mm256_castsi256_ps(sign));
  }
};

DI_KERNEL_INLINE void e2m1_split(const std::uint8_t* p, const e2m1_table& t, f32x16& even,
                                 f32x16& odd) {
  const __m128i b = load128(p);
  const __m256i lo = _mm256_cvtepu8_epi32(b);
  const __m256i hi = _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8));
  even = {t.value(lo), t.value(hi)};
  odd = {t.value(_mm256_srli_epi32(lo, 4)), t.value(_mm256_srli_epi32(hi, 4))};
}

DI_KERNEL_INLINE void interleave_halves(__m256 x, __m256 y, __m256& a, __m256& b) {
  const __m256 low = _mm256_unpacklo_ps(x, y), high = _mm256_unpackhi_ps(x, y);
  a = _mm256_permute2f128_ps(low, high, 0x20);
  b = _mm256_permute2f128_ps(low, high, 0x31);
}

DI_KERNEL_INLINE void interleave(f32x16& x, f32x16& y) {
  f32x16 a, b;
  interleave_halves(x.lo, y.lo, a.lo, a.hi);
  interleave_halves(x.hi, y.hi, b.lo, b.hi);
  x = a;
  y = b;
}

DI_KERNEL_INLINE void split_halves(__m256 x, __m256 y, __m256& even, __m256& odd) {
  const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  const __m256 a = _mm256_permutevar8x32_ps(x, order), b = _mm256_permutevar8x32_ps(y, order);
  even = _mm256_permute2f128_ps(a, b, 0x20);
  odd = _mm256_permute2f128_ps(a, b, 0x31);
}

DI_KERNEL_INLINE void split_pairs(f32x16& x, f32x16& y) {
  f32x16 a, b;
  split_halves(x.lo, x.hi, a.lo, b.lo);
  split_halves(y.lo, y.hi, a.hi, b.hi);
  x = a;
  y = b;
}

/// Closing sums of four accumulators: lanes (i, i+8), (i, i+4), (i, i+2), (i, i+1).
DI_KERNEL_INLINE __m128 tree_sum4(f32x16 a, f32x16 b, f32x16 c, f32x16 d) {
  const __m256 a8 = _mm256_add_ps(a.lo, a.hi), b8 = _mm256_add_ps(b.lo, b.hi);
  const __m256 c8 = _mm256_add_ps(c.lo, c.hi), d8 = _mm256_add_ps(d.lo, d.hi);
  const __m256 ab =
      _mm256_add_ps(_mm256_permute2f128_ps(a8, b8, 0x20), _mm256_permute2f128_ps(a8, b8, 0x31));
  const __m256 cd =
      _mm256_add_ps(_mm256_permute2f128_ps(c8, d8, 0x20), _mm256_permute2f128_ps(c8, d8, 0x31));
  // Now ab = a0 a1 a2 a3 | b0 .. b3; pairs (i, i+2), then (i, i+1).
  const __m256 h = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  const __m256 s = _mm256_add_ps(h, _mm256_permute_ps(h, 0xb1)); // a a c c | b b d d
  const __m128 ac = _mm256_castps256_ps128(s), bd = _mm256_extractf128_ps(s, 1);
  return _mm_unpacklo_ps(_mm_shuffle_ps(ac, ac, 0x88), _mm_shuffle_ps(bd, bd, 0x88));
}

DI_KERNEL_INLINE void tree_sum4(f32x16 a, f32x16 b, f32x16 c, f32x16 d, float* out) {
  _mm_storeu_ps(out, tree_sum4(a, b, c, d));
}

DI_KERNEL_INLINE float tree_sum(f32x16 a) {
  return _mm_cvtss_f32(tree_sum4(a, a, a, a));
}

DI_KERNEL_INLINE float max_of(f32x16 a) {
  const __m256 m = _mm256_max_ps(a.lo, a.hi);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  q = _mm_max_ps(q, _mm_permute_ps(q, 0x4e));
  q = _mm_max_ps(q, _mm_permute_ps(q, 0xb1));
  return _mm_cvtss_f32(q);
}

} // namespace di::kernels::avx2
