// SPDX-License-Identifier: Apache-2.0
// Reference of the stream mixing (mHC), the Engram gate, SwiGLU, expert sum and pair pooling.
#include "kernels/ref/ref.hpp"

namespace di::kernels::ref {
namespace {

using matrix = float[max_streams][max_streams];

float sigmoid(float x) {
  return math::sigmoid(scalar_f32{x}).v;
}

void divide_rows(matrix& c, std::int64_t n, float eps) {
  for (std::int64_t j = 0; j < n; ++j) {
    float sum = c[j][0];
    for (std::int64_t i = 1; i < n; ++i)
      sum += c[j][i];
    for (std::int64_t i = 0; i < n; ++i)
      c[j][i] = c[j][i] / (sum + eps);
  }
}

void divide_columns(matrix& c, std::int64_t n, float eps) {
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = c[0][i];
    for (std::int64_t j = 1; j < n; ++j)
      sum += c[j][i];
    for (std::int64_t j = 0; j < n; ++j)
      c[j][i] = c[j][i] / (sum + eps);
  }
}

/// Row softmax + eps, column division, then iterations - 1 rounds of rows and columns.
void sinkhorn(matrix& c, std::int64_t n, int iterations, float eps) {
  for (std::int64_t j = 0; j < n; ++j) {
    float maximum = c[j][0];
    for (std::int64_t i = 1; i < n; ++i)
      maximum = c[j][i] > maximum ? c[j][i] : maximum;
    for (std::int64_t i = 0; i < n; ++i)
      c[j][i] = exp(c[j][i] - maximum);
    float sum = c[j][0];
    for (std::int64_t i = 1; i < n; ++i)
      sum += c[j][i];
    for (std::int64_t i = 0; i < n; ++i)
      c[j][i] = c[j][i] / sum + eps;
  }
  divide_columns(c, n, eps);
  for (int it = 1; it < iterations; ++it) {
    divide_rows(c, n, eps);
    divide_columns(c, n, eps);
  }
}

} // namespace

status hc_mix(stream&, const bf16* x, std::int64_t rows, std::int64_t streams, std::int64_t dim,
              const float* fn, const float* scale, const float* base, int sinkhorn_iters,
              float hc_eps, float norm_eps, float* pre, float* post, float* comb) {
  if (const status s = check_streams(rows, streams, dim); s != status::ok)
    return s;
  const fp_control_guard fp;
  const std::int64_t width = streams * dim;
  const std::int64_t outputs = (2 + streams) * streams;
  for (std::int64_t r = 0; r < rows; ++r) {
    const bf16* in = x + r * width;
    lanes squares;
    for (std::int64_t k = 0; k < width; ++k)
      squares.add_product(k, bf16_to_f32(in[k]), bf16_to_f32(in[k]));
    const float norm = 1.0F / std::sqrt(squares.sum() / static_cast<float>(width) + norm_eps);
    const auto mix = [&](std::int64_t o) {
      lanes dot;
      for (std::int64_t k = 0; k < width; ++k)
        dot.add_product(k, bf16_to_f32(in[k]), fn[o * width + k]);
      const float m = dot.sum() * norm;
      const std::int64_t part = o < streams ? 0 : (o < 2 * streams ? 1 : 2);
      return std::fma(m, scale[part], base[o]);
    };
    matrix c;
    for (std::int64_t o = 0; o < outputs; ++o) {
      const float m = mix(o);
      if (o < streams)
        pre[r * streams + o] = sigmoid(m) + hc_eps;
      else if (o < 2 * streams)
        post[r * streams + o - streams] = 2.0F * sigmoid(m);
      else
        c[(o - 2 * streams) / streams][(o - 2 * streams) % streams] = m;
    }
    sinkhorn(c, streams, sinkhorn_iters, hc_eps);
    for (std::int64_t j = 0; j < streams; ++j)
      for (std::int64_t i = 0; i < streams; ++i)
        comb[(r * streams + j) * streams + i] = c[j][i];
  }
  return status::ok;
}

status hc_collapse(stream&, const bf16* x, const float* pre, std::int64_t rows,
                   std::int64_t streams, std::int64_t dim, bf16* u) {
  if (const status s = check_streams(rows, streams, dim); s != status::ok)
    return s;
  const fp_control_guard fp;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t d = 0; d < dim; ++d) {
      float sum = pre[r * streams] * bf16_to_f32(x[r * streams * dim + d]);
      for (std::int64_t s = 1; s < streams; ++s)
        sum = std::fma(pre[r * streams + s], bf16_to_f32(x[(r * streams + s) * dim + d]), sum);
      u[r * dim + d] = f32_to_bf16(sum);
    }
  }
  return status::ok;
}

status hc_update(stream&, bf16* x, const bf16* y, const float* post, const float* comb,
                 std::int64_t rows, std::int64_t streams, std::int64_t dim) {
  if (const status s = check_streams(rows, streams, dim); s != status::ok)
    return s;
  const fp_control_guard fp;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t d = 0; d < dim; ++d) {
      float old[max_streams];
      for (std::int64_t j = 0; j < streams; ++j)
        old[j] = bf16_to_f32(x[(r * streams + j) * dim + d]);
      for (std::int64_t i = 0; i < streams; ++i) {
        // The reference's order: rounded products of the streams, then post * y on top.
        float sum = comb[r * streams * streams + i] * old[0];
        for (std::int64_t j = 1; j < streams; ++j)
          sum += comb[(r * streams + j) * streams + i] * old[j];
        sum = post[r * streams + i] * bf16_to_f32(y[r * dim + d]) + sum;
        x[(r * streams + i) * dim + d] = f32_to_bf16(sum);
      }
    }
  }
  return status::ok;
}

status swiglu(stream&, const bf16* g, const bf16* u, const float* w, float limit, std::int64_t rows,
              std::int64_t dim, bf16* a) {
  if (const status s = check_sizes(rows, dim); s != status::ok)
    return s;
  const fp_control_guard fp;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float route = w == nullptr ? 1.0F : w[r];
    for (std::int64_t d = 0; d < dim; ++d) {
      float gate = bf16_to_f32(g[r * dim + d]);
      float up = bf16_to_f32(u[r * dim + d]);
      gate = limit < gate ? limit : gate;
      up = limit < up ? limit : up;
      up = -limit > up ? -limit : up;
      a[r * dim + d] = f32_to_bf16(math::silu(scalar_f32{gate}).v * up * route);
    }
  }
  return status::ok;
}

status combine(stream&, const bf16* parts, const bf16* shared, std::int64_t rows, std::int64_t k,
               std::int64_t dim, bf16* y) {
  if (const status s = check_sizes(rows, k, dim); s != status::ok)
    return s;
  const fp_control_guard fp;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t d = 0; d < dim; ++d) {
      float sum = 0;
      for (std::int64_t i = 0; i < k; ++i)
        sum += bf16_to_f32(parts[(r * k + i) * dim + d]);
      y[r * dim + d] = f32_to_bf16(sum + bf16_to_f32(shared[r * dim + d]));
    }
  }
  return status::ok;
}

status pool_pairs(stream&, const float* a, const float* g, std::int64_t pairs, std::int64_t dim,
                  bf16* latent) {
  if (const status s = check_sizes(pairs, dim); s != status::ok)
    return s;
  const fp_control_guard fp;
  for (std::int64_t p = 0; p < pairs; ++p) {
    for (std::int64_t d = 0; d < dim; ++d) {
      const std::int64_t first = p * 2 * dim + d, second = first + dim;
      const float maximum = g[second] > g[first] ? g[second] : g[first];
      const float e0 = exp(g[first] - maximum), e1 = exp(g[second] - maximum);
      const float sum = e0 + e1;
      latent[p * dim + d] = f32_to_bf16(std::fma(e1 / sum, a[second], (e0 / sum) * a[first]));
    }
  }
  return status::ok;
}

status engram_gate(stream&, bf16* x, const bf16* kv, const bf16* q_weight, const bf16* k_weight,
                   const std::uint8_t* live, std::int64_t rows, std::int64_t streams,
                   std::int64_t dim, float eps) {
  if (const status s = check_streams(rows, streams, dim); s != status::ok)
    return s;
  const fp_control_guard fp;
  const float root = 1.0F / std::sqrt(static_cast<float>(dim));
  for (std::int64_t r = 0; r < rows; ++r) {
    if (live != nullptr && live[r] == 0)
      continue;
    const bf16* value = kv + (r * (streams + 1) + streams) * dim;
    for (std::int64_t s = 0; s < streams; ++s) {
      bf16* row = x + (r * streams + s) * dim;
      const bf16* key = kv + (r * (streams + 1) + s) * dim;
      lanes row_squares, key_squares, dot;
      for (std::int64_t d = 0; d < dim; ++d) {
        const float xv = bf16_to_f32(row[d]), kx = bf16_to_f32(key[d]);
        const float weight =
            bf16_to_f32(q_weight[s * dim + d]) * bf16_to_f32(k_weight[s * dim + d]);
        row_squares.add_product(d, xv, xv);
        key_squares.add_product(d, kx, kx);
        dot.add_product(d, xv * weight, kx);
      }
      const auto n = static_cast<float>(dim);
      const float norm = (1.0F / std::sqrt(row_squares.sum() / n + eps))
                         * (1.0F / std::sqrt(key_squares.sum() / n + eps));
      const float product = dot.sum() * norm * root;
      const float size = std::fabs(product);
      const float strength = std::sqrt(size > 1e-6F ? size : 1e-6F);
      const float sign = product > 0 ? 1.0F : (product < 0 ? -1.0F : 0.0F);
      const float gate = sigmoid(sign * strength);
      for (std::int64_t d = 0; d < dim; ++d)
        row[d] = f32_to_bf16(std::fma(gate, bf16_to_f32(value[d]), bf16_to_f32(row[d])));
    }
  }
  return status::ok;
}

} // namespace di::kernels::ref
