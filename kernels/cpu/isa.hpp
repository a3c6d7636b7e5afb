// SPDX-License-Identifier: Apache-2.0
// What one instruction set's build offers to the dispatcher. Shapes are checked and the
// floating-point control register is set before these run.
#pragma once

#include "kernels/kernels.hpp"
#include "kernels/stream.hpp"

namespace di::kernels {

struct isa_ops {
  void (*linear)(cpu_stream&, const linear_job*, std::int64_t jobs);
  void (*rms_norm)(cpu_stream&, const bf16* x, std::int64_t x_stride, const bf16* w, float eps,
                   std::int64_t rows, std::int64_t dim, bf16* y, std::int64_t y_stride);
  void (*act_quant)(cpu_stream&, const bf16* x, std::int64_t x_stride, std::int64_t rows,
                    std::int64_t dim, std::uint8_t* codes, std::int64_t codes_stride,
                    std::uint8_t* scales, std::int64_t scales_stride);
  void (*pack_rows)(cpu_stream&, row_format, const bf16* x, std::int64_t x_stride,
                    std::int64_t rows, std::int64_t dim, std::byte* const* out);
  void (*unpack_rows)(cpu_stream&, row_format, const std::byte* const* in, std::int64_t rows,
                      std::int64_t dim, bf16* y);
  void (*rope)(cpu_stream&, bf16* x, std::int64_t rows, std::int64_t heads, std::int64_t dim,
               const std::int32_t* positions, rope_table, bool inverse);
  void (*attention)(cpu_stream&, const attention_args&);
  void (*index_scores)(cpu_stream&, const index_score_args&);
  void (*hc_mix)(cpu_stream&, const bf16* x, std::int64_t rows, std::int64_t streams,
                 std::int64_t dim, const float* fn, const float* scale, const float* base,
                 int sinkhorn_iters, float hc_eps, float norm_eps, float* pre, float* post,
                 float* comb);
  void (*hc_collapse)(cpu_stream&, const bf16* x, const float* pre, std::int64_t rows,
                      std::int64_t streams, std::int64_t dim, bf16* u);
  void (*hc_update)(cpu_stream&, bf16* x, const bf16* y, const float* post, const float* comb,
                    std::int64_t rows, std::int64_t streams, std::int64_t dim);
  void (*route)(cpu_stream&, const float* logits, const float* bias, std::int64_t rows,
                std::int64_t experts, std::int64_t k, float gate_temp, float route_scale,
                std::int32_t* ids, float* weights);
  void (*swiglu)(cpu_stream&, const bf16* g, const bf16* u, const float* w, float limit,
                 std::int64_t rows, std::int64_t dim, bf16* a);
  void (*combine)(cpu_stream&, const bf16* parts, const bf16* shared, std::int64_t rows,
                  std::int64_t k, std::int64_t dim, bf16* y);
  void (*pool_pairs)(cpu_stream&, const float* a, const float* g, std::int64_t pairs,
                     std::int64_t dim, bf16* latent);
  void (*engram_gate)(cpu_stream&, bf16* x, const bf16* kv, const bf16* q_weight,
                      const bf16* k_weight, const std::uint8_t* live, std::int64_t rows,
                      std::int64_t streams, std::int64_t dim, float eps);
  void (*top_k)(cpu_stream&, const float* scores, std::int64_t n, const std::uint8_t* allowed,
                std::int64_t k, std::int32_t* selected);
};

namespace portable {
extern const isa_ops ops;
}

namespace avx2 {
extern const isa_ops ops;
}

namespace avx512 {
extern const isa_ops ops;
}

} // namespace di::kernels
