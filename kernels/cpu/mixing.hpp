// SPDX-License-Identifier: Apache-2.0
// Stream mixing (mHC), Engram gate, SwiGLU, expert sum and pair pooling of one build.
#pragma once

#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/vec.hpp"

namespace di::kernels::DI_ISA {

void hc_mix(cpu_stream&, const bf16* x, std::int64_t rows, std::int64_t streams, std::int64_t dim,
            const float* fn, const float* scale, const float* base, int sinkhorn_iters,
            float hc_eps, float norm_eps, float* pre, float* post, float* comb);
void hc_collapse(cpu_stream&, const bf16* x, const float* pre, std::int64_t rows,
                 std::int64_t streams, std::int64_t dim, bf16* u);
void hc_update(cpu_stream&, bf16* x, const bf16* y, const float* post, const float* comb,
               std::int64_t rows, std::int64_t streams, std::int64_t dim);
void swiglu(cpu_stream&, const bf16* g, const bf16* u, const float* w, float limit,
            std::int64_t rows, std::int64_t dim, bf16* a);
void combine(cpu_stream&, const bf16* parts, const bf16* shared, std::int64_t rows, std::int64_t k,
             std::int64_t dim, bf16* y);
void pool_pairs(cpu_stream&, const float* a, const float* g, std::int64_t pairs, std::int64_t dim,
                bf16* latent);
void engram_gate(cpu_stream&, bf16* x, const bf16* kv, const bf16* q_weight, const bf16* k_weight,
                 const std::uint8_t* live, std::int64_t rows, std::int64_t streams,
                 std::int64_t dim, float eps);

} // namespace di::kernels::DI_ISA
