// SPDX-License-Identifier: Apache-2.0
// The inner loops of dot products: MR input rows times NR weight rows, 16 lanes along K each.
//
// A weight row reads 32 elements at a time into two vectors, in the lane order of the contract.
// Input rows are fp32, in the same order, zero-padded to whole groups of 32.
#pragma once

#include "kernels/cpu/vec.hpp"

namespace di::kernels::DI_ISA {

#if defined(DI_ISA_AVX512)
inline constexpr int fused_rows = 8; ///< most input rows that read weights undecoded
inline constexpr int panel_rows = 6; ///< most input rows of a tile over decoded weights
inline constexpr int single_columns = 8;
#elif defined(DI_ISA_AVX2)
inline constexpr int fused_rows = 1;
inline constexpr int panel_rows = 2;
inline constexpr int single_columns = 4;
#else
inline constexpr int fused_rows = 1;
inline constexpr int panel_rows = 1;
inline constexpr int single_columns = 4;
#endif
inline constexpr int tile_columns = 4;

struct f32_row {
  const float* p;
  static constexpr std::int64_t group_bytes = 128;

  DI_KERNEL_INLINE void group(std::int64_t g, f32x16& a, f32x16& b) const {
    a = f32x16::load(p + 32 * g);
    b = f32x16::load(p + 32 * g + 16);
  }

  DI_KERNEL_INLINE f32x16 first(std::int64_t k, std::int64_t n) const {
    return load_first(p + k, n);
  }
};

struct bf16_row {
  const std::uint16_t* p;
  static constexpr std::int64_t group_bytes = 64;

  DI_KERNEL_INLINE void group(std::int64_t g, f32x16& a, f32x16& b) const {
    a = load_bf16(p + 32 * g);
    b = load_bf16(p + 32 * g + 16);
  }

  DI_KERNEL_INLINE f32x16 first(std::int64_t k, std::int64_t n) const {
    return load_bf16_first(p + k, n);
  }
};

struct fp8_row {
  const std::uint8_t* p;
  const float* scale; ///< per 32, times 256
  static constexpr std::int64_t group_bytes = 32;

  DI_KERNEL_INLINE void group(std::int64_t g, f32x16& a, f32x16& b) const {
    const f32x16 s = f32x16::set(scale[g]);
    a = e4m3_256th(p + 32 * g) * s;
    b = e4m3_256th(p + 32 * g + 16) * s;
  }

  DI_KERNEL_INLINE f32x16 first(std::int64_t, std::int64_t) const { return f32x16::zero(); }
};

struct fp4_row {
  const std::uint8_t* p;
  const std::uint8_t* scale; ///< per 32
  static constexpr std::int64_t group_bytes = 16;

  DI_KERNEL_INLINE void group(std::int64_t g, f32x16& a, f32x16& b) const {
    e2m1_split(p + 16 * g, e2m1_table(scale[g]), a, b);
  }

  DI_KERNEL_INLINE f32x16 first(std::int64_t, std::int64_t) const { return f32x16::zero(); }
};

template <int MR, int NR>
struct accumulators {
  f32x16 v[MR][NR];

  DI_KERNEL_INLINE void clear() {
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m)
#pragma GCC unroll 8
      for (int n = 0; n < NR; ++n)
        v[m][n] = f32x16::zero();
  }

  /// Closing sums to out[m * stride + n]. @pre NR is 2 or a multiple of 4
  DI_KERNEL_INLINE void sums(float* out, std::int64_t stride) const {
    if constexpr (NR == 2) {
#pragma GCC unroll 4
      for (int m = 0; m < MR; m += 2) {
        const int other = m + 1 < MR ? m + 1 : m;
        float four[4];
        tree_sum4(v[m][0], v[m][1], v[other][0], v[other][1], four);
        std::memcpy(out + m * stride, four, 2 * sizeof(float));
        std::memcpy(out + other * stride, four + 2, 2 * sizeof(float));
      }
    } else {
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m)
#pragma GCC unroll 2
        for (int n = 0; n < NR; n += 4)
          tree_sum4(v[m][n], v[m][n + 1], v[m][n + 2], v[m][n + 3], out + m * stride + n);
    }
  }
};

template <class Row, int MR, int NR>
DI_KERNEL_INLINE void add_group(const Row (&rows)[NR], const float* x, std::int64_t x_stride,
                                std::int64_t g, accumulators<MR, NR>& acc) {
#pragma GCC unroll 8
  for (int n = 0; n < NR; ++n) {
    f32x16 a, b;
    rows[n].group(g, a, b);
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      const float* xm = x + m * x_stride + 32 * g;
      acc.v[m][n] = fma(f32x16::load(xm), a, acc.v[m][n]);
      acc.v[m][n] = fma(f32x16::load(xm + 16), b, acc.v[m][n]);
    }
  }
}

/// Products of MR input rows with NR weight rows of `in` elements, read as they are stored.
/// @param ahead  where the weights that come later start, prefetched at the pace of these rows
template <class Row, int MR, int NR>
DI_KERNEL_INLINE void fused_tile(const Row (&rows)[NR], const float* x, std::int64_t x_stride,
                                 std::int64_t in, const std::byte* ahead, float* out,
                                 std::int64_t out_stride) {
  constexpr std::int64_t step = NR * Row::group_bytes; // bytes of a group of all rows
  constexpr std::int64_t unroll = step >= 64 ? 1 : 64 / step;
  const std::int64_t groups = in / 32;
  accumulators<MR, NR> acc;
  acc.clear();
  std::int64_t g = 0;
  for (; g + unroll <= groups; g += unroll) {
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < unroll * step; i += 64)
      __builtin_prefetch(ahead + g * step + i);
#pragma GCC unroll 4
    for (std::int64_t i = 0; i < unroll; ++i)
      add_group(rows, x, x_stride, g + i, acc);
  }
  for (; g < groups; ++g)
    add_group(rows, x, x_stride, g, acc);
  for (std::int64_t k = 32 * groups; k < in; k += lane_count)
#pragma GCC unroll 8
    for (int n = 0; n < NR; ++n) {
      const f32x16 w = rows[n].first(k, in - k);
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m)
        acc.v[m][n] = fma(f32x16::load(x + m * x_stride + k), w, acc.v[m][n]);
    }
  acc.sums(out, out_stride);
}

/// fused_tile for 1 or 2 rows (eight columns: enough sums in flight to hide their latency), 2 to 4
/// rows (four columns) or 5 to 8 rows (two columns); without the registers 1 row, four columns.
template <class Row, int NR>
DI_KERNEL_INLINE void fused_tile_any(std::int64_t rows, const Row (&w)[NR], const float* x,
                                     std::int64_t x_stride, std::int64_t in, const std::byte* ahead,
                                     float* out, std::int64_t out_stride) {
  if constexpr (fused_rows > 1 && NR == tile_columns) {
    switch (rows) {
    case 4:
      return fused_tile<Row, 4, NR>(w, x, x_stride, in, ahead, out, out_stride);
    case 3:
      return fused_tile<Row, 3, NR>(w, x, x_stride, in, ahead, out, out_stride);
    default:
      return fused_tile<Row, 2, NR>(w, x, x_stride, in, ahead, out, out_stride);
    }
  } else if constexpr (fused_rows > 1 && NR == 2) {
    switch (rows) {
    case 8:
      return fused_tile<Row, 8, NR>(w, x, x_stride, in, ahead, out, out_stride);
    case 7:
      return fused_tile<Row, 7, NR>(w, x, x_stride, in, ahead, out, out_stride);
    case 6:
      return fused_tile<Row, 6, NR>(w, x, x_stride, in, ahead, out, out_stride);
    default:
      return fused_tile<Row, 5, NR>(w, x, x_stride, in, ahead, out, out_stride);
    }
  } else {
    if constexpr (fused_rows > 1) {
      if (rows == 2)
        return fused_tile<Row, 2, NR>(w, x, x_stride, in, ahead, out, out_stride);
    }
    fused_tile<Row, 1, NR>(w, x, x_stride, in, ahead, out, out_stride);
  }
}

/// The same over decoded weight rows w[0, NR), each `padded` floats (a multiple of 16).
template <int MR, int NR = tile_columns>
DI_KERNEL_INLINE void panel_tile(const float* w, std::int64_t w_stride, const float* x,
                                 std::int64_t x_stride, std::int64_t padded, float* out,
                                 std::int64_t out_stride) {
  accumulators<MR, NR> acc;
  acc.clear();
  for (std::int64_t k = 0; k < padded; k += lane_count) {
    f32x16 wv[NR];
#pragma GCC unroll 4
    for (int n = 0; n < NR; ++n)
      wv[n] = f32x16::load(w + n * w_stride + k);
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      const f32x16 xv = f32x16::load(x + m * x_stride + k);
#pragma GCC unroll 4
      for (int n = 0; n < NR; ++n)
        acc.v[m][n] = fma(xv, wv[n], acc.v[m][n]);
    }
  }
  acc.sums(out, out_stride);
}

/// panel_tile for any number of rows up to panel_rows.
DI_KERNEL_INLINE void panel_tile_any(std::int64_t rows, const float* w, std::int64_t w_stride,
                                     const float* x, std::int64_t x_stride, std::int64_t padded,
                                     float* out, std::int64_t out_stride) {
  if constexpr (panel_rows == 2) {
    if (rows == 2 && padded > 512) { // few registers: two by two, twice
      panel_tile<2, 2>(w, w_stride, x, x_stride, padded, out, out_stride);
      return panel_tile<2, 2>(w + 2 * w_stride, w_stride, x, x_stride, padded, out + 2, out_stride);
    }
    if (rows == 2) // short rows stay in the first-level cache
      panel_tile<1>(w, w_stride, x + x_stride, x_stride, padded, out + out_stride, out_stride);
  } else if constexpr (panel_rows > 1) {
    switch (rows) {
    case 6:
      return panel_tile<6>(w, w_stride, x, x_stride, padded, out, out_stride);
    case 5:
      return panel_tile<5>(w, w_stride, x, x_stride, padded, out, out_stride);
    case 4:
      return panel_tile<4>(w, w_stride, x, x_stride, padded, out, out_stride);
    case 3:
      return panel_tile<3>(w, w_stride, x, x_stride, padded, out, out_stride);
    case 2:
      return panel_tile<2>(w, w_stride, x, x_stride, padded, out, out_stride);
    default:
      break;
    }
  }
  panel_tile<1>(w, w_stride, x, x_stride, padded, out, out_stride);
}

} // namespace di::kernels::DI_ISA
