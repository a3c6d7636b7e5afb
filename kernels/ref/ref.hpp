// SPDX-License-Identifier: Apache-2.0
// The scalar reference: what the lanes of the contract (kernels/kernels.hpp) mean, spelled out.
// Threads are ignored; speed is no aim.
#pragma once

#include "kernels/check.hpp"
#include "kernels/formats.hpp"
#include "kernels/kernels.hpp"
#include "kernels/math.hpp"

#include <cmath>
#include <vector>

namespace di::kernels::ref {

inline constexpr int lane_count = 16;

/// Sixteen partial sums of one dot product.
struct lanes {
  float v[lane_count] = {};

  void add_product(std::int64_t lane, float a, float b) {
    v[lane % lane_count] = std::fma(a, b, v[lane % lane_count]);
  }

  void add(std::int64_t lane, float a) { v[lane % lane_count] += a; }

  /// (i, i+8), (i, i+4), (i, i+2), (i, i+1)
  float sum() const {
    float s[lane_count];
    for (int i = 0; i < lane_count; ++i)
      s[i] = v[i];
    for (int step = 8; step >= 1; step /= 2)
      for (int i = 0; i < step; ++i)
        s[i] = s[i] + s[i + step];
    return s[0];
  }
};

/// Lane of element k when 32 elements are stored even ones first (fp4).
inline std::int64_t split_lane(std::int64_t k) {
  return (k / 2) % lane_count;
}

inline float exp(float x) {
  return math::exp(scalar_f32{x}).v;
}

status linear(stream&, std::span<const linear_job>);
status rms_norm(stream&, const bf16* x, std::int64_t x_stride, const bf16* w, float eps,
                std::int64_t rows, std::int64_t dim, bf16* y, std::int64_t y_stride);
status act_quant(stream&, const bf16* x, std::int64_t x_stride, std::int64_t rows, std::int64_t dim,
                 std::uint8_t* codes, std::int64_t codes_stride, std::uint8_t* scales,
                 std::int64_t scales_stride);
status pack_rows(stream&, row_format, const bf16* x, std::int64_t x_stride, std::int64_t rows,
                 std::int64_t dim, std::byte* const* out);
status unpack_rows(stream&, row_format, const std::byte* const* in, std::int64_t rows,
                   std::int64_t dim, bf16* y);
status rope(stream&, bf16* x, std::int64_t rows, std::int64_t heads, std::int64_t dim,
            const std::int32_t* positions, rope_table, bool inverse);
status attention(stream&, const attention_args&);
status index_scores(stream&, const index_score_args&);
status hc_mix(stream&, const bf16* x, std::int64_t rows, std::int64_t streams, std::int64_t dim,
              const float* fn, const float* scale, const float* base, int sinkhorn_iters,
              float hc_eps, float norm_eps, float* pre, float* post, float* comb);
status hc_collapse(stream&, const bf16* x, const float* pre, std::int64_t rows,
                   std::int64_t streams, std::int64_t dim, bf16* u);
status hc_update(stream&, bf16* x, const bf16* y, const float* post, const float* comb,
                 std::int64_t rows, std::int64_t streams, std::int64_t dim);
status route(stream&, const float* logits, const float* bias, std::int64_t rows,
             std::int64_t experts, std::int64_t k, float gate_temp, float route_scale,
             std::int32_t* ids, float* weights);
status swiglu(stream&, const bf16* g, const bf16* u, const float* w, float limit, std::int64_t rows,
              std::int64_t dim, bf16* a);
status combine(stream&, const bf16* parts, const bf16* shared, std::int64_t rows, std::int64_t k,
               std::int64_t dim, bf16* y);
status pool_pairs(stream&, const float* a, const float* g, std::int64_t pairs, std::int64_t dim,
                  bf16* latent);
status engram_gate(stream&, bf16* x, const bf16* kv, const bf16* q_weight, const bf16* k_weight,
                   const std::uint8_t* live, std::int64_t rows, std::int64_t streams,
                   std::int64_t dim, float eps);
status top_k(stream&, const float* scores, std::int64_t n, const std::uint8_t* allowed,
             std::int64_t k, std::int32_t* selected);

/// Element k of one packed row, exactly.
float packed_value(row_format, const std::byte* row, std::int64_t dim, std::int64_t k);

} // namespace di::kernels::ref
