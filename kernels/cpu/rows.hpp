// SPDX-License-Identifier: Apache-2.0
// Row operations of one build: norm, quantisers, packed rows, rope, router, top-k.
#pragma once

#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/vec.hpp"

namespace di::kernels::DI_ISA {

void rms_norm(cpu_stream&, const bf16* x, std::int64_t x_stride, const bf16* w, float eps,
              std::int64_t rows, std::int64_t dim, bf16* y, std::int64_t y_stride);
void act_quant(cpu_stream&, const bf16* x, std::int64_t x_stride, std::int64_t rows,
               std::int64_t dim, std::uint8_t* codes, std::int64_t codes_stride,
               std::uint8_t* scales, std::int64_t scales_stride);
void pack_rows(cpu_stream&, row_format, const bf16* x, std::int64_t x_stride, std::int64_t rows,
               std::int64_t dim, std::byte* const* out);
void unpack_rows(cpu_stream&, row_format, const std::byte* const* in, std::int64_t rows,
                 std::int64_t dim, bf16* y);
void rope(cpu_stream&, bf16* x, std::int64_t rows, std::int64_t heads, std::int64_t dim,
          const std::int32_t* positions, rope_table, bool inverse);
void route(cpu_stream&, const float* logits, const float* bias, std::int64_t rows,
           std::int64_t experts, std::int64_t k, float gate_temp, float route_scale,
           std::int32_t* ids, float* weights);
void top_k(cpu_stream&, const float* scores, std::int64_t n, const std::uint8_t* allowed,
           std::int64_t k, std::int32_t* selected);

/// One packed row as fp32, in element order. Writes up to 31 floats beyond `dim`.
void unpack_row(row_format, const std::byte* row, std::int64_t dim, float* to);
/// One fp4_32 row, in each 32 the even elements first.
void unpack_row_split(const std::byte* row, std::int64_t dim, float* to);

/// Deals `units` to the threads; f(unit, worker) must be callable from any of them.
template <class F>
void for_units(cpu_stream& s, std::int64_t units, std::int64_t cost_ns, const F& f) {
  s.run(
      units, cost_ns,
      [](void* context, std::int64_t begin, std::int64_t end, unsigned worker) {
        const F& g = *static_cast<const F*>(context);
        for (std::int64_t u = begin; u < end; ++u)
          g(u, worker);
      },
      const_cast<void*>(static_cast<const void*>(&f)));
}

} // namespace di::kernels::DI_ISA
