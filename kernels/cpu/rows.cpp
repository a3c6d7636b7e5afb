// SPDX-License-Identifier: Apache-2.0
// Norm, quantisers, packed rows and rope, a row at a time.
#include "kernels/cpu/rows.hpp"

namespace di::kernels::DI_ISA {
namespace {

/// e4m3 codes of sixteen values: nearest even, saturating, NaN = 0x7f.
DI_KERNEL_INLINE i32x16 to_e4m3(f32x16 x) {
  const i32x16 u = bits(x);
  const i32x16 m = u & i32x16::set(0x7fffffff);
  const f32x16 a = from_bits(m);
  const i32x16 odd = shift_right_logical<20>(m) & i32x16::set(1);
  const i32x16 normal =
      shift_right_logical<20>(m + i32x16::set(0x7ffff) + odd) - i32x16::set((127 - 7) << 3);
  const i32x16 steps = bits(a * f32x16::set(512.0F) + f32x16::set(8388608.0F)) & i32x16::set(0xf);
  i32x16 code = select_gt(f32x16::set(0x1p-6F), a, steps, normal);
  code = select_gt(a, f32x16::set(0x1.bffffep+8F), i32x16::set(0x7e), code); // from 448 on
  code = code | (shift_right_logical<24>(u) & i32x16::set(0x80));
  return select_nan(x, i32x16::set(0x7f), code);
}

/// e2m1 codes of sixteen values: ties to the even code, saturating, NaN = 0.
DI_KERNEL_INLINE i32x16 to_e2m1(f32x16 x) {
  const f32x16 a = absolute(x);
  const i32x16 one = i32x16::set(1), none = i32x16::set(0);
  // a >= t is a > the float below t.
  const float thresholds[7] = {0.25F, 0x1.7ffffep-1F, 1.25F, 0x1.bffffep+0F,
                               2.5F,  0x1.bffffep+1F, 5.0F};
  i32x16 code = none;
#pragma GCC unroll 8
  for (int i = 0; i < 7; ++i)
    code = code + select_gt(a, f32x16::set(thresholds[i]), one, none);
  code = code | (shift_right_logical<28>(bits(x)) & i32x16::set(8));
  return select_nan(x, none, code);
}

DI_KERNEL_INLINE float absolute_max(f32x16 a, f32x16 b, float floor) {
  const f32x16 least_value = f32x16::set(floor);
  return max_of(vmax(absolute(b), vmax(absolute(a), least_value)));
}

DI_KERNEL_INLINE std::uint8_t quantise_fp8(const bf16* x, std::uint8_t* codes) {
  const f32x16 a = load_bf16(x), b = load_bf16(x + 16);
  const std::uint8_t scale = e8m0_scale(absolute_max(a, b, act_floor), inverse_448);
  const f32x16 inverse = f32x16::set(e8m0_inverse(scale));
  store_bytes(codes, to_e4m3(a * inverse));
  store_bytes(codes + 16, to_e4m3(b * inverse));
  return scale;
}

/// Sixteen codes to eight bytes, even ones in the low nibble.
DI_KERNEL_INLINE void store_nibbles(std::uint8_t* to, i32x16 codes) {
  std::uint8_t tmp[16];
  store_bytes(tmp, codes);
  for (int i = 0; i < 8; ++i)
    to[i] = static_cast<std::uint8_t>(tmp[2 * i] | (tmp[2 * i + 1] << 4));
}

void pack_fp8(const bf16* x, std::int64_t dim, std::uint8_t* to) {
  for (std::int64_t b = 0; b < dim / 32; ++b)
    to[dim + b] = quantise_fp8(x + 32 * b, to + 32 * b);
}

void pack_fp4_16(const bf16* x, std::int64_t dim, std::uint8_t* to) {
  for (std::int64_t b = 0; b < dim / 16; ++b) {
    const f32x16 v = load_bf16(x + 16 * b);
    const std::uint8_t scale = f32_to_e4m3(absolute_max(v, v, main_floor) / 6.0F);
    to[dim / 2 + b] = scale;
    store_nibbles(to + 8 * b, to_e2m1(v / f32x16::set(e4m3_to_f32(scale))));
  }
}

void pack_fp4_32(const bf16* x, std::int64_t dim, std::uint8_t* to) {
  for (std::int64_t b = 0; b < dim / 32; ++b) {
    const f32x16 v0 = load_bf16(x + 32 * b), v1 = load_bf16(x + 32 * b + 16);
    const std::uint8_t scale = e8m0_scale(absolute_max(v0, v1, index_floor), inverse_6);
    const f32x16 inverse = f32x16::set(e8m0_inverse(scale));
    to[dim / 2 + b] = scale;
    store_nibbles(to + 16 * b, to_e2m1(v0 * inverse));
    store_nibbles(to + 16 * b + 8, to_e2m1(v1 * inverse));
  }
}

} // namespace

void rms_norm(cpu_stream& s, const bf16* x, std::int64_t x_stride, const bf16* w, float eps,
              std::int64_t rows, std::int64_t dim, bf16* y, std::int64_t y_stride) {
  for_units(s, rows, rows * dim / 8, [&](std::int64_t r, unsigned) {
    const bf16* in = x + r * x_stride;
    bf16* out = y + r * y_stride;
    f32x16 squares = f32x16::zero();
    for (std::int64_t k = 0; k < dim; k += lane_count) {
      const f32x16 v = load_bf16_first(in + k, dim - k);
      squares = fma(v, v, squares);
    }
    const float mean = tree_sum(squares) / static_cast<float>(dim);
    const f32x16 scale = f32x16::set(1.0F / __builtin_sqrtf(mean + eps));
    for (std::int64_t k = 0; k < dim; k += lane_count) {
      const std::int64_t n = dim - k;
      store_bf16_first(out + k, load_bf16_first(w + k, n) * (load_bf16_first(in + k, n) * scale),
                       n);
    }
  });
}

void act_quant(cpu_stream& s, const bf16* x, std::int64_t x_stride, std::int64_t rows,
               std::int64_t dim, std::uint8_t* codes, std::int64_t codes_stride,
               std::uint8_t* scales, std::int64_t scales_stride) {
  for_units(s, rows, rows * dim / 4, [&](std::int64_t r, unsigned) {
    for (std::int64_t b = 0; b < dim / 32; ++b)
      scales[r * scales_stride + b] =
          quantise_fp8(x + r * x_stride + 32 * b, codes + r * codes_stride + 32 * b);
  });
}

void pack_rows(cpu_stream& s, row_format f, const bf16* x, std::int64_t x_stride, std::int64_t rows,
               std::int64_t dim, std::byte* const* out) {
  for_units(s, rows, rows * dim / 4, [&](std::int64_t r, unsigned) {
    const bf16* in = x + r * x_stride;
    auto* to = reinterpret_cast<std::uint8_t*>(out[r]);
    switch (f) {
    case row_format::fp8_32:
      return pack_fp8(in, dim, to);
    case row_format::fp4_16:
      return pack_fp4_16(in, dim, to);
    case row_format::fp4_32:
      return pack_fp4_32(in, dim, to);
    case row_format::plain:
      std::memcpy(to, in, static_cast<std::size_t>(dim) * sizeof(bf16));
      return;
    }
  });
}

void unpack_row(row_format f, const std::byte* row, std::int64_t dim, float* to) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(row);
  if (f == row_format::plain) {
    const auto* from = reinterpret_cast<const bf16*>(row);
    for (std::int64_t k = 0; k < dim; k += lane_count)
      load_bf16_first(from + k, dim - k).store(to + k);
  } else if (f == row_format::fp8_32) {
    for (std::int64_t k = 0; k < dim; k += 32) {
      const f32x16 scale = f32x16::set(e8m0_to_f32(codes[dim + k / 32]));
      (load_e4m3(codes + k) * scale).store(to + k);
      (load_e4m3(codes + k + 16) * scale).store(to + k + 16);
    }
  } else {
    const bool wide = f == row_format::fp4_32;
    const std::uint8_t* scales = codes + dim / 2;
    for (std::int64_t k = 0; k < dim; k += 32) {
      f32x16 a, b;
      if (dim - k >= 32) {
        e2m1_split(codes + k / 2, e2m1_table(127), a, b);
      } else { // the last half group of an fp4_16 row
        std::uint8_t tmp[16] = {};
        std::memcpy(tmp, codes + k / 2, 8);
        e2m1_split(tmp, e2m1_table(127), a, b);
      }
      interleave(a, b);
      const float s0 = wide ? e8m0_to_f32(scales[k / 32]) : e4m3_to_f32(scales[k / 16]);
      (a * f32x16::set(s0)).store(to + k);
      if (dim - k >= 32)
        (b * f32x16::set(wide ? s0 : e4m3_to_f32(scales[k / 16 + 1]))).store(to + k + 16);
    }
  }
}

void unpack_row_split(const std::byte* row, std::int64_t dim, float* to) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(row);
  for (std::int64_t k = 0; k < dim; k += 32) {
    f32x16 a, b;
    e2m1_split(codes + k / 2, e2m1_table(codes[dim / 2 + k / 32]), a, b);
    a.store(to + k);
    b.store(to + k + 16);
  }
}

void unpack_rows(cpu_stream& s, row_format f, const std::byte* const* in, std::int64_t rows,
                 std::int64_t dim, bf16* y) {
  for_units(s, rows, rows * dim / 4, [&](std::int64_t r, unsigned worker) {
    auto* tmp = reinterpret_cast<float*>(
        s.worker_scratch(worker, static_cast<std::size_t>(dim + 32) * sizeof(float)));
    unpack_row(f, in[r], dim, tmp);
    for (std::int64_t k = 0; k < dim; k += lane_count)
      store_bf16_first(y + r * dim + k, f32x16::load(tmp + k), dim - k);
  });
}

namespace {

/// n <= 16 adjacent pairs times (cos, sin).
DI_KERNEL_INLINE void rotate(bf16* p, const float* cosine, const float* sine, std::int64_t n) {
  alignas(64) std::uint32_t tmp[16] = {};
  void* at = p;
  if (n < 16) {
    std::memcpy(tmp, p, static_cast<std::size_t>(n) * 4);
    at = tmp;
  }
  const i32x16 w = load_words(at);
  const i32x16 high = i32x16::set(static_cast<int>(0xffff0000U));
  const f32x16 a = from_bits(shift_left<16>(w)), b = from_bits(w & high);
  const f32x16 c = f32x16::load(cosine), d = f32x16::load(sine);
  const f32x16 re = fma(a, c, negated(b * d));
  const f32x16 im = fma(a, d, b * c);
  store_words(at, shift_right_logical<16>(bf16_high_bits(re)) | bf16_high_bits(im));
  if (n < 16)
    std::memcpy(p, tmp, static_cast<std::size_t>(n) * 4);
}

} // namespace

void rope(cpu_stream& s, bf16* x, std::int64_t rows, std::int64_t heads, std::int64_t dim,
          const std::int32_t* positions, rope_table t, bool inverse) {
  const std::int64_t pairs = t.rope_dim / 2;
  const std::int64_t padded = (pairs + lane_count - 1) / lane_count * lane_count;
  for_units(s, rows, rows * pairs * (20 + heads), [&](std::int64_t r, unsigned worker) {
    auto* cosine = reinterpret_cast<float*>(
        s.worker_scratch(worker, static_cast<std::size_t>(2 * padded) * sizeof(float)));
    float* sine = cosine + padded;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const math::sin_cos_f32 v = math::sin_cos(static_cast<float>(positions[r]) * t.freq[i]);
      cosine[i] = v.cos;
      sine[i] = inverse ? -v.sin : v.sin;
    }
    for (std::int64_t i = pairs; i < padded; ++i)
      cosine[i] = sine[i] = 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      bf16* head = x + (r * heads + h) * dim + dim - t.rope_dim;
      for (std::int64_t i = 0; i < pairs; i += lane_count)
        rotate(head + 2 * i, cosine + i, sine + i, least(lane_count, pairs - i));
    }
  });
}

} // namespace di::kernels::DI_ISA
