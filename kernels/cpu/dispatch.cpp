// SPDX-License-Identifier: Apache-2.0
// The doors of the CPU kernels: check, set the floating-point control register, call the build of
// the chosen instruction set.
#include "kernels/check.hpp"
#include "kernels/cpu/isa.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace di::kernels {
namespace {

cpu_stream& pool(stream& s) {
  return static_cast<cpu_stream&>(s);
}

/// Runs f when the check passed.
template <class F>
status guarded(status checked, F f) {
  if (checked != status::ok)
    return checked;
  const fp_control_guard fp;
  f();
  return status::ok;
}

/// The functions of op_table over one build.
template <const isa_ops& Ops>
struct door {
  static status linear(stream& s, std::span<const linear_job> jobs) {
    return guarded(check_linear(jobs), [&] { Ops.linear(pool(s), jobs.data(), std::ssize(jobs)); });
  }

  static status rms_norm(stream& s, const bf16* x, std::int64_t x_stride, const bf16* w, float eps,
                         std::int64_t rows, std::int64_t dim, bf16* y, std::int64_t y_stride) {
    return guarded(check_rows(rows, dim, 1, x_stride, y_stride),
                   [&] { Ops.rms_norm(pool(s), x, x_stride, w, eps, rows, dim, y, y_stride); });
  }

  static status act_quant(stream& s, const bf16* x, std::int64_t x_stride, std::int64_t rows,
                          std::int64_t dim, std::uint8_t* codes, std::int64_t codes_stride,
                          std::uint8_t* scales, std::int64_t scales_stride) {
    if (rows > 1 && scales_stride < dim / 32)
      return status::bad_shape;
    return guarded(check_rows(rows, dim, 32, x_stride, codes_stride), [&] {
      Ops.act_quant(pool(s), x, x_stride, rows, dim, codes, codes_stride, scales, scales_stride);
    });
  }

  static status pack_rows(stream& s, row_format f, const bf16* x, std::int64_t x_stride,
                          std::int64_t rows, std::int64_t dim, std::byte* const* out) {
    if (rows > 1 && x_stride < dim)
      return status::bad_shape;
    return guarded(check_packed(f, rows, dim),
                   [&] { Ops.pack_rows(pool(s), f, x, x_stride, rows, dim, out); });
  }

  static status unpack_rows(stream& s, row_format f, const std::byte* const* in, std::int64_t rows,
                            std::int64_t dim, bf16* y) {
    return guarded(check_packed(f, rows, dim),
                   [&] { Ops.unpack_rows(pool(s), f, in, rows, dim, y); });
  }

  static status rope(stream& s, bf16* x, std::int64_t rows, std::int64_t heads, std::int64_t dim,
                     const std::int32_t* positions, rope_table t, bool inverse) {
    return guarded(check_rope(rows, heads, dim, t),
                   [&] { Ops.rope(pool(s), x, rows, heads, dim, positions, t, inverse); });
  }

  static status attention(stream& s, const attention_args& a) {
    return guarded(check_attention(a), [&] { Ops.attention(pool(s), a); });
  }

  static status index_scores(stream& s, const index_score_args& a) {
    return guarded(check_index_scores(a), [&] { Ops.index_scores(pool(s), a); });
  }

  static status hc_mix(stream& s, const bf16* x, std::int64_t rows, std::int64_t streams,
                       std::int64_t dim, const float* fn, const float* scale, const float* base,
                       int sinkhorn_iters, float hc_eps, float norm_eps, float* pre, float* post,
                       float* comb) {
    return guarded(check_streams(rows, streams, dim), [&] {
      Ops.hc_mix(pool(s), x, rows, streams, dim, fn, scale, base, sinkhorn_iters, hc_eps, norm_eps,
                 pre, post, comb);
    });
  }

  static status hc_collapse(stream& s, const bf16* x, const float* pre, std::int64_t rows,
                            std::int64_t streams, std::int64_t dim, bf16* u) {
    return guarded(check_streams(rows, streams, dim),
                   [&] { Ops.hc_collapse(pool(s), x, pre, rows, streams, dim, u); });
  }

  static status hc_update(stream& s, bf16* x, const bf16* y, const float* post, const float* comb,
                          std::int64_t rows, std::int64_t streams, std::int64_t dim) {
    return guarded(check_streams(rows, streams, dim),
                   [&] { Ops.hc_update(pool(s), x, y, post, comb, rows, streams, dim); });
  }

  static status route(stream& s, const float* logits, const float* bias, std::int64_t rows,
                      std::int64_t experts, std::int64_t k, float gate_temp, float route_scale,
                      std::int32_t* ids, float* weights) {
    return guarded(check_route(rows, experts, k), [&] {
      Ops.route(pool(s), logits, bias, rows, experts, k, gate_temp, route_scale, ids, weights);
    });
  }

  static status swiglu(stream& s, const bf16* g, const bf16* u, const float* w, float limit,
                       std::int64_t rows, std::int64_t dim, bf16* a) {
    return guarded(check_sizes(rows, dim),
                   [&] { Ops.swiglu(pool(s), g, u, w, limit, rows, dim, a); });
  }

  static status combine(stream& s, const bf16* parts, const bf16* shared, std::int64_t rows,
                        std::int64_t k, std::int64_t dim, bf16* y) {
    return guarded(check_sizes(rows, k, dim),
                   [&] { Ops.combine(pool(s), parts, shared, rows, k, dim, y); });
  }

  static status pool_pairs(stream& s, const float* a, const float* g, std::int64_t pairs,
                           std::int64_t dim, bf16* latent) {
    return guarded(check_sizes(pairs, dim),
                   [&] { Ops.pool_pairs(pool(s), a, g, pairs, dim, latent); });
  }

  static status engram_gate(stream& s, bf16* x, const bf16* kv, const bf16* q_weight,
                            const bf16* k_weight, const std::uint8_t* live, std::int64_t rows,
                            std::int64_t streams, std::int64_t dim, float eps) {
    return guarded(check_streams(rows, streams, dim), [&] {
      Ops.engram_gate(pool(s), x, kv, q_weight, k_weight, live, rows, streams, dim, eps);
    });
  }

  static status top_k(stream& s, const float* scores, std::int64_t n, const std::uint8_t* allowed,
                      std::int64_t k, std::int32_t* selected) {
    return guarded(check_sizes(n, k), [&] { Ops.top_k(pool(s), scores, n, allowed, k, selected); });
  }

  static constexpr op_table table(const char* name) {
    return {.name = name,
            .linear = linear,
            .rms_norm = rms_norm,
            .act_quant = act_quant,
            .pack_rows = pack_rows,
            .unpack_rows = unpack_rows,
            .rope = rope,
            .attention = attention,
            .index_scores = index_scores,
            .hc_mix = hc_mix,
            .hc_collapse = hc_collapse,
            .hc_update = hc_update,
            .route = route,
            .swiglu = swiglu,
            .combine = combine,
            .pool_pairs = pool_pairs,
            .engram_gate = engram_gate,
            .top_k = top_k};
  }
};

} // namespace

bool isa_available(isa level) {
  switch (level) {
  case isa::portable:
    return true;
#if defined(__x86_64__)
  case isa::avx2:
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
           && __builtin_cpu_supports("f16c");
  case isa::avx512:
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
           && isa_available(isa::avx2);
#endif
  default:
    return false;
  }
}

const op_table& cpu_ops(isa level) {
  static constexpr op_table plain = door<portable::ops>::table("portable");
#if defined(__x86_64__)
  static constexpr op_table narrow = door<avx2::ops>::table("avx2");
  static constexpr op_table wide = door<avx512::ops>::table("avx512");
  if (level == isa::avx512)
    return wide;
  if (level == isa::avx2)
    return narrow;
#else
  (void)level;
#endif
  return plain;
}

const op_table& best_cpu_ops() {
  static const op_table& best = [&]() -> const op_table& {
    const char* wanted = std::getenv("DI_ISA");
    const std::string_view name = wanted == nullptr ? "" : wanted;
    for (const isa level : {isa::avx512, isa::avx2, isa::portable})
      if (isa_available(level) && (name.empty() || name == cpu_ops(level).name))
        return cpu_ops(level);
    // An unknown or unavailable name: what runs everywhere, and a word about it.
    std::fprintf(stderr,
                 "DI_ISA=%s: not known or not on this machine; using portable. Values: "
                 "avx512, avx2, portable\n",
                 wanted);
    return cpu_ops(isa::portable);
  }();
  return best;
}

} // namespace di::kernels
