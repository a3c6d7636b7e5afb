// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes in one AVX-512 register. See kernels/cpu/vec.hpp.
#pragma once

#include <immintrin.h>

namespace di::kernels::avx512 {

struct i32x16 {
  __m512i v;

  static DI_KERNEL_INLINE i32x16 set(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
};

DI_KERNEL_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
  return {_mm512_add_epi32(a.v, b.v)};
}

DI_KERNEL_INLINE i32x16 operator-(i32x16 a, i32x16 b) {
  return {_mm512_sub_epi32(a.v, b.v)};
}

DI_KERNEL_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
  return {_mm512_and_si512(a.v, b.v)};
}

DI_KERNEL_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
  return {_mm512_or_si512(a.v, b.v)};
}

template <int N>
DI_KERNEL_INLINE i32x16 shift_left(i32x16 a) {
  return {_mm512_slli_epi32(a.v, N)};
}

template <int N>
DI_KERNEL_INLINE i32x16 shift_right(i32x16 a) {
  return {_mm512_srai_epi32(a.v, N)};
}

template <int N>
DI_KERNEL_INLINE i32x16 shift_right_logical(i32x16 a) {
  return {_mm512_srli_epi32(a.v, N)};
}

struct f32x16 {
  __m512 v;

  using integer = i32x16;

  static DI_KERNEL_INLINE f32x16 set(float x) { return {_mm512_set1_ps(x)}; }
  static DI_KERNEL_INLINE f32x16 zero() { return {_mm512_setzero_ps()}; }
  static DI_KERNEL_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }

  DI_KERNEL_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
};

DI_KERNEL_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
  return {_mm512_add_ps(a.v, b.v)};
}

DI_KERNEL_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}

DI_KERNEL_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}

DI_KERNEL_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
  return {_mm512_div_ps(a.v, b.v)};
}

DI_KERNEL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}

DI_KERNEL_INLINE f32x16 square_root(f32x16 a) {
  return {_mm512_sqrt_ps(a.v)};
}

DI_KERNEL_INLINE f32x16 vmax(f32x16 a, f32x16 b) {
  return {_mm512_max_ps(a.v, b.v)};
}

DI_KERNEL_INLINE f32x16 vmin(f32x16 a, f32x16 b) {
  return {_mm512_min_ps(a.v, b.v)};
}

DI_KERNEL_INLINE i32x16 bits(f32x16 a) {
  return {_mm512_castps_si512(a.v)};
}

DI_KERNEL_INLINE f32x16 from_bits(i32x16 a) {
  return {_mm512_castsi512_ps(a.v)};
}

DI_KERNEL_INLINE f32x16 select_gt(f32x16 a, f32x16 b, f32x16 t, f32x16 f) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), f.v, t.v)};
}

DI_KERNEL_INLINE i32x16 select_gt(f32x16 a, f32x16 b, i32x16 t, i32x16 f) {
  return {_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), f.v, t.v)};
}

DI_KERNEL_INLINE i32x16 select_nan(f32x16 a, i32x16 t, i32x16 f) {
  return {_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), f.v, t.v)};
}

DI_KERNEL_INLINE f32x16 to_float(i32x16 a) {
  return {_mm512_cvtepi32_ps(a.v)};
}

DI_KERNEL_INLINE f32x16 load_bf16(const std::uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}

/// bf16 bits in the upper half of each lane (vcvtneps2bf16 would flush subnormals)
DI_KERNEL_INLINE i32x16 bf16_high_bits(f32x16 a) {
  const i32x16 u = bits(a);
  const i32x16 odd = shift_right_logical<16>(u) & i32x16::set(1);
  const i32x16 r = (u + i32x16::set(0x7fff) + odd) & i32x16::set(static_cast<int>(0xffff0000U));
  return select_nan(a, i32x16::set(0x7fc00000), r);
}

DI_KERNEL_INLINE void store_bf16(std::uint16_t* p, f32x16 a) {
  const __m256i h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_high_bits(a).v, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h);
}

DI_KERNEL_INLINE i32x16 load_words(const void* p) {
  return {_mm512_loadu_si512(p)};
}

DI_KERNEL_INLINE void store_words(void* p, i32x16 a) {
  _mm512_storeu_si512(p, a.v);
}

/// 16 bytes, zero-extended
DI_KERNEL_INLINE i32x16 load_bytes(const std::uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

DI_KERNEL_INLINE void store_bytes(std::uint8_t* p, i32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

DI_KERNEL_INLINE f32x16 e4m3_256th(const std::uint8_t* p) {
  // Sign-extended and shifted by 7 a code is an fp16 with the exponent 8 too small; the copy of the
  // sign in bit 14 goes.
  const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i h =
      _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
  return {_mm512_cvtph_ps(h)};
}

struct e2m1_table {
  __m512 values;

  explicit DI_KERNEL_INLINE e2m1_table(std::uint8_t scale)
      : values(_mm512_load_ps(e2m1_scaled.value[scale])) {}
};

DI_KERNEL_INLINE void e2m1_split(const std::uint8_t* p, const e2m1_table& t, f32x16& even,
                                 f32x16& odd) {
  const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  // The permutation looks at the low four bits only.
  even.v = _mm512_permutexvar_ps(b, t.values);
  odd.v = _mm512_permutexvar_ps(_mm512_srli_epi32(b, 4), t.values);
}

DI_KERNEL_INLINE void interleave(f32x16& x, f32x16& y) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  const __m512 a = _mm512_permutex2var_ps(x.v, low, y.v);
  y.v = _mm512_permutex2var_ps(x.v, high, y.v);
  x.v = a;
}

DI_KERNEL_INLINE void split_pairs(f32x16& x, f32x16& y) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  const __m512 a = _mm512_permutex2var_ps(x.v, even, y.v);
  y.v = _mm512_permutex2var_ps(x.v, odd, y.v);
  x.v = a;
}

/// Closing sums of four accumulators: lanes (i, i+8), (i, i+4), (i, i+2), (i, i+1).
DI_KERNEL_INLINE __m128 tree_sum4(f32x16 a, f32x16 b, f32x16 c, f32x16 d) {
  // Quarters of 128 bits: 0..3. First 0+2 and 1+3 (i, i+8), then those two (i, i+4).
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xee));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xee));
  const __m512 q =
      _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 h = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4e));
  const __m512 s = _mm512_add_ps(h, _mm512_permute_ps(h, 0xb1));
  const __m512i pick = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(pick, s));
}

DI_KERNEL_INLINE void tree_sum4(f32x16 a, f32x16 b, f32x16 c, f32x16 d, float* out) {
  _mm_storeu_ps(out, tree_sum4(a, b, c, d));
}

DI_KERNEL_INLINE float tree_sum(f32x16 a) {
  return _mm_cvtss_f32(tree_sum4(a, a, a, a));
}

DI_KERNEL_INLINE float max_of(f32x16 a) {
  return _mm512_reduce_max_ps(a.v);
}

} // namespace di::kernels::avx512
