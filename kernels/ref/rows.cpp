// SPDX-License-Identifier: Apache-2.0
// Reference of the row operations: norm, quantisers, packed rows, rope.
#include "kernels/ref/ref.hpp"

#include <cstring>

namespace di::kernels::ref {

status rms_norm(stream&, const bf16* x, std::int64_t x_stride, const bf16* w, float eps,
                std::int64_t rows, std::int64_t dim, bf16* y, std::int64_t y_stride) {
  if (const status s = check_rows(rows, dim, 1, x_stride, y_stride); s != status::ok)
    return s;
  const fp_control_guard fp;
  for (std::int64_t r = 0; r < rows; ++r) {
    const bf16* in = x + r * x_stride;
    lanes squares;
    for (std::int64_t k = 0; k < dim; ++k)
      squares.add_product(k, bf16_to_f32(in[k]), bf16_to_f32(in[k]));
    const float scale = 1.0F / std::sqrt(squares.sum() / static_cast<float>(dim) + eps);
    for (std::int64_t k = 0; k < dim; ++k)
      y[r * y_stride + k] = f32_to_bf16(bf16_to_f32(w[k]) * (bf16_to_f32(in[k]) * scale));
  }
  return status::ok;
}

namespace {

float absolute_max(const bf16* x, std::int64_t n, float floor) {
  float m = floor;
  for (std::int64_t i = 0; i < n; ++i) {
    const float a = std::fabs(bf16_to_f32(x[i]));
    m = a > m ? a : m; // NaN is passed over
  }
  return m;
}

/// 32 values to e4m3 codes and their scale byte.
std::uint8_t quantise_fp8(const bf16* x, std::uint8_t* codes) {
  const std::uint8_t scale = e8m0_scale(absolute_max(x, 32, act_floor), inverse_448);
  const float inverse = e8m0_inverse(scale);
  for (int i = 0; i < 32; ++i)
    codes[i] = f32_to_e4m3(bf16_to_f32(x[i]) * inverse);
  return scale;
}

void pack_fp4(const bf16* x, int n, float divisor, std::uint8_t* codes) {
  for (int i = 0; i < n; i += 2) {
    const std::uint8_t low = f32_to_e2m1(bf16_to_f32(x[i]) / divisor);
    const std::uint8_t high = f32_to_e2m1(bf16_to_f32(x[i + 1]) / divisor);
    codes[i / 2] = static_cast<std::uint8_t>(low | (high << 4));
  }
}

void pack_row(row_format f, const bf16* x, std::int64_t dim, std::byte* out) {
  auto* codes = reinterpret_cast<std::uint8_t*>(out);
  switch (f) {
  case row_format::plain:
    std::memcpy(out, x, static_cast<std::size_t>(dim) * sizeof(bf16));
    break;
  case row_format::fp8_32:
    for (std::int64_t b = 0; b < dim / 32; ++b)
      codes[dim + b] = quantise_fp8(x + b * 32, codes + b * 32);
    break;
  case row_format::fp4_16:
    for (std::int64_t b = 0; b < dim / 16; ++b) {
      const std::uint8_t scale = f32_to_e4m3(absolute_max(x + b * 16, 16, main_floor) / 6.0F);
      codes[dim / 2 + b] = scale;
      pack_fp4(x + b * 16, 16, e4m3_to_f32(scale), codes + b * 8);
    }
    break;
  case row_format::fp4_32:
    for (std::int64_t b = 0; b < dim / 32; ++b) {
      const std::uint8_t scale = e8m0_scale(absolute_max(x + b * 32, 32, index_floor), inverse_6);
      codes[dim / 2 + b] = scale;
      pack_fp4(x + b * 32, 32, e8m0_to_f32(scale), codes + b * 16);
    }
    break;
  }
}

} // namespace

status act_quant(stream&, const bf16* x, std::int64_t x_stride, std::int64_t rows, std::int64_t dim,
                 std::uint8_t* codes, std::int64_t codes_stride, std::uint8_t* scales,
                 std::int64_t scales_stride) {
  if (check_rows(rows, dim, 32, x_stride, codes_stride) != status::ok
      || (rows > 1 && scales_stride < dim / 32))
    return status::bad_shape;
  const fp_control_guard fp;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t b = 0; b < dim / 32; ++b)
      scales[r * scales_stride + b] =
          quantise_fp8(x + r * x_stride + b * 32, codes + r * codes_stride + b * 32);
  return status::ok;
}

status pack_rows(stream&, row_format f, const bf16* x, std::int64_t x_stride, std::int64_t rows,
                 std::int64_t dim, std::byte* const* out) {
  if (check_packed(f, rows, dim) != status::ok || (rows > 1 && x_stride < dim))
    return status::bad_shape;
  const fp_control_guard fp;
  for (std::int64_t r = 0; r < rows; ++r)
    pack_row(f, x + r * x_stride, dim, out[r]);
  return status::ok;
}

float packed_value(row_format f, const std::byte* row, std::int64_t dim, std::int64_t k) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(row);
  if (f == row_format::plain) {
    bf16 v = 0;
    std::memcpy(&v, codes + 2 * k, sizeof v);
    return bf16_to_f32(v);
  }
  if (f == row_format::fp8_32)
    return e4m3_to_f32(codes[k]) * e8m0_to_f32(codes[dim + k / 32]);
  const auto code = static_cast<std::uint8_t>(k % 2 == 0 ? codes[k / 2] & 15U : codes[k / 2] >> 4);
  const float scale = f == row_format::fp4_16 ? e4m3_to_f32(codes[dim / 2 + k / 16])
                                              : e8m0_to_f32(codes[dim / 2 + k / 32]);
  return e2m1_to_f32(code) * scale;
}

status unpack_rows(stream&, row_format f, const std::byte* const* in, std::int64_t rows,
                   std::int64_t dim, bf16* y) {
  if (const status s = check_packed(f, rows, dim); s != status::ok)
    return s;
  const fp_control_guard fp;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < dim; ++k)
      y[r * dim + k] = f32_to_bf16(packed_value(f, in[r], dim, k));
  return status::ok;
}

status rope(stream&, bf16* x, std::int64_t rows, std::int64_t heads, std::int64_t dim,
            const std::int32_t* positions, rope_table table, bool inverse) {
  if (const status s = check_rope(rows, heads, dim, table); s != status::ok)
    return s;
  const fp_control_guard fp;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < table.rope_dim / 2; ++i) {
      const math::sin_cos_f32 t = math::sin_cos(static_cast<float>(positions[r]) * table.freq[i]);
      const float sine = inverse ? -t.sin : t.sin;
      for (std::int64_t h = 0; h < heads; ++h) {
        bf16* p = x + (r * heads + h) * dim + dim - table.rope_dim + 2 * i;
        const float a = bf16_to_f32(p[0]), b = bf16_to_f32(p[1]);
        p[0] = f32_to_bf16(std::fma(a, t.cos, -(b * sine)));
        p[1] = f32_to_bf16(std::fma(a, sine, b * t.cos));
      }
    }
  }
  return status::ok;
}

} // namespace di::kernels::ref
