// SPDX-License-Identifier: Apache-2.0
// Stream mixing (mHC), Engram gate, SwiGLU, expert sum and pair pooling.
#include "kernels/cpu/mixing.hpp"

#include "kernels/check.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/rows.hpp"

namespace di::kernels::DI_ISA {
namespace {

/// Sixteen token rows side by side, one per lane.
struct matrices {
  f32x16 v[max_streams][max_streams];
};

DI_KERNEL_INLINE void divide_rows(matrices& c, std::int64_t n, f32x16 eps) {
  for (std::int64_t j = 0; j < n; ++j) {
    f32x16 sum = c.v[j][0];
    for (std::int64_t i = 1; i < n; ++i)
      sum = sum + c.v[j][i];
    sum = sum + eps;
    for (std::int64_t i = 0; i < n; ++i)
      c.v[j][i] = c.v[j][i] / sum;
  }
}

DI_KERNEL_INLINE void divide_columns(matrices& c, std::int64_t n, f32x16 eps) {
  for (std::int64_t i = 0; i < n; ++i) {
    f32x16 sum = c.v[0][i];
    for (std::int64_t j = 1; j < n; ++j)
      sum = sum + c.v[j][i];
    sum = sum + eps;
    for (std::int64_t j = 0; j < n; ++j)
      c.v[j][i] = c.v[j][i] / sum;
  }
}

DI_KERNEL_INLINE void sinkhorn(matrices& c, std::int64_t n, int iterations, f32x16 eps) {
  for (std::int64_t j = 0; j < n; ++j) {
    f32x16 maximum = c.v[j][0];
    for (std::int64_t i = 1; i < n; ++i)
      maximum = vmax(c.v[j][i], maximum);
    for (std::int64_t i = 0; i < n; ++i)
      c.v[j][i] = math::exp(c.v[j][i] - maximum);
    f32x16 sum = c.v[j][0];
    for (std::int64_t i = 1; i < n; ++i)
      sum = sum + c.v[j][i];
    for (std::int64_t i = 0; i < n; ++i)
      c.v[j][i] = c.v[j][i] / sum + eps;
  }
  divide_columns(c, n, eps);
  for (int it = 1; it < iterations; ++it) {
    divide_rows(c, n, eps);
    divide_columns(c, n, eps);
  }
}

struct mix_args {
  const float* mixes; ///< [rows, outputs] fn . x, not normed
  const float* norm;  ///< [rows]
  std::int64_t rows, streams;
  const float* scale;
  const float* base;
  int iterations;
  float eps;
  float *pre, *post, *comb;
};

/// Rows [r0, r0 + n), n <= 16, in lanes.
template <int Streams>
void finish_mixes(const mix_args& a, std::int64_t r0, std::int64_t n) {
  const std::int64_t streams = Streams > 0 ? Streams : a.streams;
  const std::int64_t outputs = (2 + streams) * streams;
  const f32x16 eps = f32x16::set(a.eps);
  alignas(64) float lane[16] = {};
  for (std::int64_t i = 0; i < n; ++i)
    lane[i] = a.norm[r0 + i];
  const f32x16 norm = f32x16::load(lane);
  const auto mix = [&](std::int64_t o, std::int64_t part) {
    for (std::int64_t i = 0; i < n; ++i)
      lane[i] = a.mixes[(r0 + i) * outputs + o];
    return fma(f32x16::load(lane) * norm, f32x16::set(a.scale[part]), f32x16::set(a.base[o]));
  };
  const auto put = [&](f32x16 v, float* to, std::int64_t stride) {
    v.store(lane);
    for (std::int64_t i = 0; i < n; ++i)
      to[i * stride] = lane[i];
  };
  for (std::int64_t o = 0; o < streams; ++o) {
    put(math::sigmoid(mix(o, 0)) + eps, a.pre + r0 * streams + o, streams);
    put(f32x16::set(2.0F) * math::sigmoid(mix(streams + o, 1)), a.post + r0 * streams + o, streams);
  }
  matrices c;
  for (std::int64_t j = 0; j < streams; ++j)
    for (std::int64_t i = 0; i < streams; ++i)
      c.v[j][i] = mix((2 + j) * streams + i, 2);
  sinkhorn(c, streams, a.iterations, eps);
  for (std::int64_t j = 0; j < streams; ++j)
    for (std::int64_t i = 0; i < streams; ++i)
      put(c.v[j][i], a.comb + (r0 * streams + j) * streams + i, streams * streams);
}

} // namespace

void hc_mix(cpu_stream& s, const bf16* x, std::int64_t rows, std::int64_t streams, std::int64_t dim,
            const float* fn, const float* scale, const float* base, int sinkhorn_iters,
            float hc_eps, float norm_eps, float* pre, float* post, float* comb) {
  const std::int64_t width = streams * dim, outputs = (2 + streams) * streams;
  auto* mixes = reinterpret_cast<float*>(s.shared_scratch(
      cpu_stream::shared::result, static_cast<std::size_t>(rows * (outputs + 1)) * sizeof(float)));
  float* norm = mixes + rows * outputs;
  linear_job job;
  job.w = {weight_kind::f32, fn, nullptr, outputs, width};
  job.x = x;
  job.x_stride = width;
  job.rows = rows;
  job.y = mixes;
  job.y_f32 = true;
  job.y_stride = outputs;
  linear(s, &job, 1);
  const mix_args a{mixes,          norm,   rows, streams, scale, base,
                   sinkhorn_iters, hc_eps, pre,  post,    comb};
  const std::int64_t groups = (rows + lane_count - 1) / lane_count;
  for_units(s, groups, rows * width / 16 + groups * 2000, [&](std::int64_t g, unsigned) {
    const std::int64_t r0 = g * lane_count, n = least(lane_count, rows - r0);
    for (std::int64_t r = r0; r < r0 + n; ++r) {
      f32x16 squares = f32x16::zero();
      for (std::int64_t k = 0; k < width; k += lane_count) {
        const f32x16 v = load_bf16_first(x + r * width + k, width - k);
        squares = fma(v, v, squares);
      }
      norm[r] = 1.0F / __builtin_sqrtf(tree_sum(squares) / static_cast<float>(width) + norm_eps);
    }
    if (streams == 4)
      finish_mixes<4>(a, r0, n);
    else
      finish_mixes<0>(a, r0, n);
  });
}

void hc_collapse(cpu_stream& s, const bf16* x, const float* pre, std::int64_t rows,
                 std::int64_t streams, std::int64_t dim, bf16* u) {
  for_units(s, rows, rows * streams * dim / 16, [&](std::int64_t r, unsigned) {
    const float* p = pre + r * streams;
    const bf16* in = x + r * streams * dim;
    for (std::int64_t d = 0; d < dim; d += lane_count) {
      const std::int64_t n = dim - d;
      f32x16 sum = f32x16::set(p[0]) * load_bf16_first(in + d, n);
      for (std::int64_t i = 1; i < streams; ++i)
        sum = fma(f32x16::set(p[i]), load_bf16_first(in + i * dim + d, n), sum);
      store_bf16_first(u + r * dim + d, sum, n);
    }
  });
}

void hc_update(cpu_stream& s, bf16* x, const bf16* y, const float* post, const float* comb,
               std::int64_t rows, std::int64_t streams, std::int64_t dim) {
  for_units(s, rows, rows * streams * dim / 8, [&](std::int64_t r, unsigned) {
    bf16* row = x + r * streams * dim;
    const float* c = comb + r * streams * streams;
    for (std::int64_t d = 0; d < dim; d += lane_count) {
      const std::int64_t n = dim - d;
      f32x16 old[max_streams];
      for (std::int64_t j = 0; j < streams; ++j)
        old[j] = load_bf16_first(row + j * dim + d, n);
      const f32x16 out = load_bf16_first(y + r * dim + d, n);
      for (std::int64_t i = 0; i < streams; ++i) {
        f32x16 sum = f32x16::set(c[i]) * old[0];
        for (std::int64_t j = 1; j < streams; ++j)
          sum = sum + f32x16::set(c[j * streams + i]) * old[j];
        store_bf16_first(row + i * dim + d, f32x16::set(post[r * streams + i]) * out + sum, n);
      }
    }
  });
}

void swiglu(cpu_stream& s, const bf16* g, const bf16* u, const float* w, float limit,
            std::int64_t rows, std::int64_t dim, bf16* a) {
  const f32x16 high = f32x16::set(limit), low = f32x16::set(-limit);
  for_units(s, rows, rows * dim / 4, [&](std::int64_t r, unsigned) {
    const f32x16 route = f32x16::set(w == nullptr ? 1.0F : w[r]);
    for (std::int64_t d = 0; d < dim; d += lane_count) {
      const std::int64_t n = dim - d;
      const f32x16 gate = vmin(high, load_bf16_first(g + r * dim + d, n));
      const f32x16 up = vmax(low, vmin(high, load_bf16_first(u + r * dim + d, n)));
      store_bf16_first(a + r * dim + d, math::silu(gate) * up * route, n);
    }
  });
}

void combine(cpu_stream& s, const bf16* parts, const bf16* shared, std::int64_t rows,
             std::int64_t k, std::int64_t dim, bf16* y) {
  for_units(s, rows, rows * (k + 2) * dim / 24, [&](std::int64_t r, unsigned) {
    for (std::int64_t d = 0; d < dim; d += lane_count) {
      const std::int64_t n = dim - d;
      f32x16 sum = f32x16::zero();
      for (std::int64_t i = 0; i < k; ++i)
        sum = sum + load_bf16_first(parts + (r * k + i) * dim + d, n);
      store_bf16_first(y + r * dim + d, sum + load_bf16_first(shared + r * dim + d, n), n);
    }
  });
}

void pool_pairs(cpu_stream& s, const float* a, const float* g, std::int64_t pairs, std::int64_t dim,
                bf16* latent) {
  for_units(s, pairs, pairs * dim / 4, [&](std::int64_t p, unsigned) {
    for (std::int64_t d = 0; d < dim; d += lane_count) {
      const std::int64_t n = dim - d, first = 2 * p * dim + d, second = first + dim;
      const f32x16 g0 = load_first(g + first, n), g1 = load_first(g + second, n);
      const f32x16 maximum = vmax(g1, g0);
      const f32x16 e0 = math::exp(g0 - maximum), e1 = math::exp(g1 - maximum);
      const f32x16 sum = e0 + e1;
      const f32x16 v =
          fma(e1 / sum, load_first(a + second, n), (e0 / sum) * load_first(a + first, n));
      store_bf16_first(latent + p * dim + d, v, n);
    }
  });
}

namespace {

/// X += gate * value for one stream of one row; dim elements each.
void gate_stream(bf16* x, const bf16* key, const bf16* value, const bf16* q_weight,
                 const bf16* k_weight, std::int64_t dim, float eps) {
  f32x16 row_squares = f32x16::zero(), key_squares = f32x16::zero(), dots = f32x16::zero();
  for (std::int64_t d = 0; d < dim; d += lane_count) {
    const std::int64_t n = dim - d;
    const f32x16 xv = load_bf16_first(x + d, n), kv = load_bf16_first(key + d, n);
    const f32x16 weight = load_bf16_first(q_weight + d, n) * load_bf16_first(k_weight + d, n);
    row_squares = fma(xv, xv, row_squares);
    key_squares = fma(kv, kv, key_squares);
    dots = fma(xv * weight, kv, dots);
  }
  const auto width = static_cast<float>(dim);
  const float norm = (1.0F / __builtin_sqrtf(tree_sum(row_squares) / width + eps))
                     * (1.0F / __builtin_sqrtf(tree_sum(key_squares) / width + eps));
  const float product = tree_sum(dots) * norm * (1.0F / __builtin_sqrtf(width));
  const float size = __builtin_fabsf(product);
  const float strength = __builtin_sqrtf(size > 1e-6F ? size : 1e-6F);
  const float sign = product > 0 ? 1.0F : (product < 0 ? -1.0F : 0.0F);
  const f32x16 gate = f32x16::set(math::sigmoid(scalar_f32{sign * strength}).v);
  for (std::int64_t d = 0; d < dim; d += lane_count) {
    const std::int64_t n = dim - d;
    store_bf16_first(x + d, fma(gate, load_bf16_first(value + d, n), load_bf16_first(x + d, n)), n);
  }
}

} // namespace

void engram_gate(cpu_stream& s, bf16* x, const bf16* kv, const bf16* q_weight, const bf16* k_weight,
                 const std::uint8_t* live, std::int64_t rows, std::int64_t streams,
                 std::int64_t dim, float eps) {
  for_units(s, rows, rows * streams * dim / 4, [&](std::int64_t r, unsigned) {
    if (live != nullptr && live[r] == 0)
      return;
    const bf16* keys = kv + r * (streams + 1) * dim;
    for (std::int64_t i = 0; i < streams; ++i)
      gate_stream(x + (r * streams + i) * dim, keys + i * dim, keys + streams * dim,
                  q_weight + i * dim, k_weight + i * dim, dim, eps);
  });
}

} // namespace di::kernels::DI_ISA
