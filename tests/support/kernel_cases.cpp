// SPDX-License-Identifier: Apache-2.0
// The random inputs and calls of the kernel tests.
#include "tests/support/kernel_cases.hpp"

#include "tests/support/noise.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace di::kernels {

namespace {

using words = std::vector<bf16>;
using floats = std::vector<float>;
using codes = std::vector<std::uint8_t>;

template <class T>
const T* at(const std::shared_ptr<std::vector<T>>& v, std::int64_t i) {
  return v->data() + i;
}

template <class T>
std::shared_ptr<std::vector<T>> hold(std::vector<T> v) {
  return std::make_shared<std::vector<T>>(std::move(v));
}

template <class T>
void append(std::vector<std::byte>& out, const T* from, std::int64_t n) {
  const auto* p = reinterpret_cast<const std::byte*>(from);
  out.insert(out.end(), p, p + n * static_cast<std::int64_t>(sizeof(T)));
}

std::size_t bytes_of(std::int64_t n, std::size_t each) {
  return static_cast<std::size_t>(n) * each;
}

/// Weights of one kind with scales from very small to large.
struct matrix {
  std::shared_ptr<codes> data, scale;
  weight w;
};

matrix make_weight(noise& r, weight_kind kind, std::int64_t out, std::int64_t in, int low,
                   int high) {
  matrix m;
  const std::int64_t groups = in / 32, tiles = (out + 31) / 32;
  switch (kind) {
  case weight_kind::f32: {
    const floats f = r.normal_f32(out * in);
    const auto* p = reinterpret_cast<const std::uint8_t*>(f.data());
    m.data = hold(codes(p, p + 4 * out * in));
    break;
  }
  case weight_kind::bf16: {
    const words f = r.wide_bf16(out * in);
    const auto* p = reinterpret_cast<const std::uint8_t*>(f.data());
    m.data = hold(codes(p, p + 2 * out * in));
    break;
  }
  case weight_kind::fp8_tile32:
    m.data = hold(r.e4m3(out * in));
    m.scale = hold(r.e8m0(tiles * groups, low, high));
    break;
  case weight_kind::fp8_row32:
    m.data = hold(r.e4m3(out * in));
    m.scale = hold(r.e8m0(out * groups, low, high));
    break;
  case weight_kind::fp4_row32:
    m.data = hold(r.bytes(out * in / 2));
    m.scale = hold(r.e8m0(out * groups, low, high));
    break;
  }
  m.w = {kind, m.data->data(), m.scale ? m.scale->data() : nullptr, out, in};
  return m;
}

/// Two jobs in one region on the same input, one with fp32 and one with bf16 output.
row_case linear_case(std::uint64_t seed, weight_kind kind, input_kind x_kind, std::int64_t out,
                     std::int64_t in, std::int64_t rows, int low, int high) {
  noise r(seed);
  const matrix a = make_weight(r, kind, out, in, low, high);
  const matrix b = make_weight(r, kind, 7, in, low, high);
  const auto xf = hold(r.normal_f32(rows * in)), none = hold(floats());
  const auto xb = hold(r.wide_bf16(rows * in));
  const auto xc = hold(r.e4m3(rows * in)), xs = hold(r.e8m0(rows * (in / 32 + 1), 120, 134));
  (void)none;
  return {"linear kind " + std::to_string(static_cast<int>(kind)) + " input "
              + std::to_string(static_cast<int>(x_kind)) + " " + std::to_string(out) + "x"
              + std::to_string(in) + " scales " + std::to_string(low),
          rows, bytes_of(out, 4) + 14,
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            floats y(bytes_of(n * out, 1), -1.0F);
            words z(bytes_of(n * 7, 1), 1);
            linear_job j;
            j.w = a.w;
            j.x_kind = x_kind;
            j.x_stride = in;
            j.rows = n;
            if (x_kind == input_kind::f32)
              j.x = at(xf, first * in);
            else if (x_kind == input_kind::bf16)
              j.x = at(xb, first * in);
            else
              j.x = at(xc, first * in);
            j.x_scale = at(xs, first * (in / 32));
            j.x_scale_stride = in / 32;
            j.y = y.data();
            j.y_f32 = true;
            j.y_stride = out;
            linear_job k = j;
            k.w = b.w;
            k.y = z.data();
            k.y_f32 = false;
            k.y_stride = 7;
            const std::vector<linear_job> jobs{j, k};
            EXPECT_EQ(ops.linear(s, jobs), status::ok);
            std::vector<std::byte> result;
            for (std::int64_t i = 0; i < n; ++i) {
              append(result, y.data() + i * out, out);
              append(result, z.data() + i * 7, 7);
            }
            return result;
          }};
}

row_case norm_case(std::uint64_t seed, std::int64_t dim, std::int64_t rows) {
  noise r(seed);
  const auto x = hold(r.wide_bf16(rows * dim)), w = hold(r.normal_bf16(dim));
  return {"rms_norm " + std::to_string(dim), rows, bytes_of(dim, 2),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            words y(bytes_of(n * dim, 1));
            EXPECT_EQ(
                ops.rms_norm(s, at(x, first * dim), dim, w->data(), 1e-20F, n, dim, y.data(), dim),
                status::ok);
            std::vector<std::byte> out;
            append(out, y.data(), n * dim);
            return out;
          }};
}

row_case quant_case(std::uint64_t seed, std::int64_t dim, std::int64_t rows) {
  noise r(seed);
  const auto x = hold(r.wide_bf16(rows * dim));
  return {"act_quant " + std::to_string(dim), rows, bytes_of(dim + dim / 32, 1),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            codes c(bytes_of(n * dim, 1)), e(bytes_of(n * dim / 32, 1));
            EXPECT_EQ(ops.act_quant(s, at(x, first * dim), dim, n, dim, c.data(), dim, e.data(),
                                    dim / 32),
                      status::ok);
            std::vector<std::byte> out;
            for (std::int64_t i = 0; i < n; ++i) {
              append(out, c.data() + i * dim, dim);
              append(out, e.data() + i * dim / 32, dim / 32);
            }
            return out;
          }};
}

row_case packing_case(std::uint64_t seed, row_format f, std::int64_t dim, std::int64_t rows) {
  noise r(seed);
  const auto x = hold(r.wide_bf16(rows * dim));
  const auto size = static_cast<std::size_t>(row_bytes(f, dim));
  return {"pack_rows and unpack_rows format " + std::to_string(static_cast<int>(f)) + " "
              + std::to_string(dim),
          rows, size + bytes_of(dim, 2),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            std::vector<std::byte> packed(bytes_of(n, size));
            std::vector<std::byte*> to;
            for (std::int64_t i = 0; i < n; ++i)
              to.push_back(packed.data() + bytes_of(i, size));
            EXPECT_EQ(ops.pack_rows(s, f, at(x, first * dim), dim, n, dim, to.data()), status::ok);
            const std::vector<const std::byte*> from(to.begin(), to.end());
            words y(bytes_of(n * dim, 1));
            EXPECT_EQ(ops.unpack_rows(s, f, from.data(), n, dim, y.data()), status::ok);
            std::vector<std::byte> out;
            for (std::int64_t i = 0; i < n; ++i) {
              append(out, to[bytes_of(i, 1)], static_cast<std::int64_t>(size));
              append(out, y.data() + i * dim, dim);
            }
            return out;
          }};
}

row_case rope_case(std::uint64_t seed, std::int64_t heads, std::int64_t dim, std::int64_t rope_dim,
                   bool inverse, std::int64_t rows) {
  noise r(seed);
  const auto x = hold(r.normal_bf16(rows * heads * dim));
  const auto freq = hold(r.normal_f32(rope_dim / 2));
  const auto positions = std::make_shared<std::vector<std::int32_t>>();
  for (std::int64_t i = 0; i < rows; ++i)
    positions->push_back(static_cast<std::int32_t>(r.below(1 << 20)));
  const std::int64_t width = heads * dim;
  return {"rope " + std::to_string(rope_dim), rows, bytes_of(width, 2),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            words y(at(x, first * width), at(x, (first + n) * width));
            EXPECT_EQ(ops.rope(s, y.data(), n, heads, dim, at(positions, first),
                               {freq->data(), rope_dim}, inverse),
                      status::ok);
            std::vector<std::byte> out;
            append(out, y.data(), n * width);
            return out;
          }};
}

row_case attention_case(std::uint64_t seed, std::int64_t heads, std::int64_t dim,
                        std::int64_t slots, std::int64_t rows) {
  noise r(seed);
  const std::int64_t width = heads * dim, pool = 40;
  const auto q = hold(r.normal_bf16(rows * width)), x = hold(r.normal_bf16(pool * dim));
  const auto sink = hold(r.normal_f32(heads));
  const auto window_size = row_bytes(row_format::fp8_32, dim),
             entry_size = row_bytes(row_format::fp4_16, dim);
  const auto window = hold(std::vector<std::byte>(bytes_of(pool * window_size, 1)));
  const auto entries = hold(std::vector<std::byte>(bytes_of(pool * entry_size, 1)));
  const auto s0 = make_cpu_stream(1);
  for (std::int64_t i = 0; i < pool; ++i) {
    std::byte* a = window->data() + i * window_size;
    std::byte* b = entries->data() + i * entry_size;
    ref_ops().pack_rows(*s0, row_format::fp8_32, at(x, i * dim), dim, 1, dim, &a);
    ref_ops().pack_rows(*s0, row_format::fp4_16, at(x, i * dim), dim, 1, dim, &b);
  }
  const auto list = std::make_shared<std::vector<const std::byte*>>();
  const auto split = std::make_shared<std::vector<std::int32_t>>();
  const auto total = std::make_shared<std::vector<std::int32_t>>();
  for (std::int64_t i = 0; i < rows; ++i) {
    total->push_back(static_cast<std::int32_t>(i == 0 ? 0 : r.below(slots + 1)));
    split->push_back(static_cast<std::int32_t>(r.below(total->back() + 1)));
    const bool all_masked = i % 11 == 3;
    for (std::int64_t j = 0; j < slots; ++j) {
      const bool masked = all_masked || r.below(5) == 0;
      const std::byte* row = j < split->back() ? window->data() + r.below(pool) * window_size
                                               : entries->data() + r.below(pool) * entry_size;
      list->push_back(masked ? nullptr : row);
    }
  }
  return {"attention " + std::to_string(heads) + " heads of " + std::to_string(dim), rows,
          bytes_of(width, 2),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            words out(bytes_of(n * width, 1));
            attention_args a;
            a.q = at(q, first * width);
            a.rows = n;
            a.heads = heads;
            a.dim = dim;
            a.kv = list->data() + first * slots;
            a.kv_stride = slots;
            a.window_count = at(split, first);
            a.total_count = at(total, first);
            a.sink = sink->data();
            a.scale = 0.3F;
            a.out = out.data();
            (void)window;
            (void)entries;
            EXPECT_EQ(ops.attention(s, a), status::ok);
            std::vector<std::byte> result;
            append(result, out.data(), n * width);
            return result;
          }};
}

row_case index_case(std::uint64_t seed, std::int64_t heads, std::int64_t dim, std::int64_t entries,
                    std::int64_t rows) {
  noise r(seed);
  const std::int64_t width = heads * dim, page = 24, size = row_bytes(row_format::fp4_32, dim);
  const auto q = hold(r.normal_bf16(rows * width)), w = hold(r.normal_bf16(rows * heads));
  const auto x = hold(r.normal_bf16(entries * dim));
  const auto packed = hold(std::vector<std::byte>(bytes_of(entries * size, 1)));
  const auto pages = std::make_shared<std::vector<const std::byte*>>();
  const auto visible = std::make_shared<std::vector<std::int32_t>>();
  const auto s0 = make_cpu_stream(1);
  for (std::int64_t i = 0; i < entries; ++i) {
    std::byte* to = packed->data() + i * size;
    ref_ops().pack_rows(*s0, row_format::fp4_32, at(x, i * dim), dim, 1, dim, &to);
    if (i % page == 0)
      pages->push_back(to);
  }
  for (std::int64_t i = 0; i < rows; ++i)
    visible->push_back(static_cast<std::int32_t>(r.below(entries + 1)));
  return {"index_scores", rows, bytes_of(entries, 4),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            floats scores(bytes_of(n * entries, 1));
            (void)packed;
            const index_score_args a{
                at(q, first * width), at(w, first * heads), n,      heads, dim, pages->data(), page,
                at(visible, first),   scores.data(),        entries};
            EXPECT_EQ(ops.index_scores(s, a), status::ok);
            std::vector<std::byte> out;
            append(out, scores.data(), n * entries);
            return out;
          }};
}

row_case mixing_case(std::uint64_t seed, std::int64_t streams, std::int64_t dim,
                     std::int64_t rows) {
  noise r(seed);
  const std::int64_t width = streams * dim, outputs = (2 + streams) * streams,
                     squares = streams * streams;
  const auto x = hold(r.normal_bf16(rows * width)), y = hold(r.normal_bf16(rows * dim));
  const auto fn = hold(r.normal_f32(outputs * width, 0.2F)), scale = hold(r.normal_f32(3)),
             base = hold(r.normal_f32(outputs));
  return {"hc_mix, hc_collapse, hc_update " + std::to_string(streams) + " streams", rows,
          bytes_of(2 * streams + squares, 4) + bytes_of(dim + width, 2),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            floats pre(bytes_of(n * streams, 1)), post(pre.size()), comb(bytes_of(n * squares, 1));
            words u(bytes_of(n * dim, 1));
            words state(at(x, first * width), at(x, (first + n) * width));
            EXPECT_EQ(ops.hc_mix(s, state.data(), n, streams, dim, fn->data(), scale->data(),
                                 base->data(), 20, 1e-6F, 1e-20F, pre.data(), post.data(),
                                 comb.data()),
                      status::ok);
            EXPECT_EQ(ops.hc_collapse(s, state.data(), pre.data(), n, streams, dim, u.data()),
                      status::ok);
            EXPECT_EQ(ops.hc_update(s, state.data(), at(y, first * dim), post.data(), comb.data(),
                                    n, streams, dim),
                      status::ok);
            std::vector<std::byte> out;
            for (std::int64_t i = 0; i < n; ++i) {
              append(out, pre.data() + i * streams, streams);
              append(out, post.data() + i * streams, streams);
              append(out, comb.data() + i * squares, squares);
              append(out, u.data() + i * dim, dim);
              append(out, state.data() + i * width, width);
            }
            return out;
          }};
}

row_case route_case(std::uint64_t seed, std::int64_t experts, std::int64_t k, std::int64_t rows) {
  noise r(seed);
  auto values = r.normal_f32(rows * experts, 8.0F);
  for (std::size_t i = 0; i + 1 < values.size(); i += 5)
    values[i + 1] = values[i]; // ties
  const auto logits = hold(std::move(values));
  const auto bias = hold(floats(bytes_of(experts, 1), 0.25F));
  return {"route " + std::to_string(experts), rows, bytes_of(k, 8),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            std::vector<std::int32_t> ids(bytes_of(n * k, 1));
            floats weights(ids.size());
            EXPECT_EQ(ops.route(s, at(logits, first * experts), bias->data(), n, experts, k, 0.9F,
                                1.5F, ids.data(), weights.data()),
                      status::ok);
            std::vector<std::byte> out;
            for (std::int64_t i = 0; i < n; ++i) {
              append(out, ids.data() + i * k, k);
              append(out, weights.data() + i * k, k);
            }
            return out;
          }};
}

row_case expert_case(std::uint64_t seed, std::int64_t dim, std::int64_t k, std::int64_t rows) {
  noise r(seed);
  const auto g = hold(r.wide_bf16(rows * dim)), u = hold(r.wide_bf16(rows * dim)),
             parts = hold(r.normal_bf16(rows * k * dim));
  const auto w = hold(r.normal_f32(rows));
  return {"swiglu and combine " + std::to_string(dim), rows, bytes_of(dim, 6),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            words a(bytes_of(n * dim, 1)), b(a.size()), y(a.size());
            const bf16 *gp = at(g, first * dim), *up = at(u, first * dim);
            EXPECT_EQ(ops.swiglu(s, gp, up, at(w, first), 10.0F, n, dim, a.data()), status::ok);
            EXPECT_EQ(ops.swiglu(s, gp, up, nullptr, 0.5F, n, dim, b.data()), status::ok);
            EXPECT_EQ(ops.combine(s, at(parts, first * k * dim), a.data(), n, k, dim, y.data()),
                      status::ok);
            std::vector<std::byte> out;
            for (std::int64_t i = 0; i < n; ++i)
              for (const words* v : {&a, &b, &y})
                append(out, v->data() + i * dim, dim);
            return out;
          }};
}

row_case pool_case(std::uint64_t seed, std::int64_t dim, std::int64_t rows) {
  noise r(seed);
  const auto a = hold(r.normal_f32(rows * 2 * dim)), g = hold(r.normal_f32(rows * 2 * dim, 30.0F));
  return {"pool_pairs " + std::to_string(dim), rows, bytes_of(dim, 2),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            words y(bytes_of(n * dim, 1));
            EXPECT_EQ(
                ops.pool_pairs(s, at(a, first * 2 * dim), at(g, first * 2 * dim), n, dim, y.data()),
                status::ok);
            std::vector<std::byte> out;
            append(out, y.data(), n * dim);
            return out;
          }};
}

row_case engram_case(std::uint64_t seed, std::int64_t streams, std::int64_t dim,
                     std::int64_t rows) {
  noise r(seed);
  const std::int64_t width = streams * dim, wide = width + dim;
  const auto x = hold(r.normal_bf16(rows * width)), kv = hold(r.normal_bf16(rows * wide)),
             qw = hold(r.normal_bf16(width)), kw = hold(r.normal_bf16(width));
  const auto live = hold(r.e8m0(rows, 0, 1));
  return {"engram_gate " + std::to_string(dim), rows, bytes_of(width, 2),
          [=](const op_table& ops, stream& s, std::int64_t first, std::int64_t n) {
            words y(at(x, first * width), at(x, (first + n) * width));
            EXPECT_EQ(ops.engram_gate(s, y.data(), at(kv, first * wide), qw->data(), kw->data(),
                                      at(live, first), n, streams, dim, 1e-20F),
                      status::ok);
            std::vector<std::byte> out;
            append(out, y.data(), n * width);
            return out;
          }};
}

} // namespace

std::vector<row_case> all_row_cases(std::int64_t rows) {
  std::vector<row_case> all;
  std::uint64_t seed = 1;
  for (const input_kind x : {input_kind::f32, input_kind::bf16, input_kind::fp8}) {
    const std::int64_t odd = x == input_kind::fp8 ? 96 : 75; // fp8 inputs need whole groups
    all.push_back(linear_case(seed++, weight_kind::f32, x, 35, odd, rows, 0, 0));
    all.push_back(linear_case(seed++, weight_kind::bf16, x, 41, odd, rows, 0, 0));
    for (const weight_kind w :
         {weight_kind::fp8_tile32, weight_kind::fp8_row32, weight_kind::fp4_row32})
      all.push_back(linear_case(seed++, w, x, 67, 160, rows, 110, 140));
  }
  // Scales at both ends of the format: subnormal products, and powers that 256 times overflow.
  for (const weight_kind w :
       {weight_kind::fp8_tile32, weight_kind::fp8_row32, weight_kind::fp4_row32}) {
    all.push_back(linear_case(seed++, w, input_kind::bf16, 33, 64, rows, 0, 12));
    all.push_back(linear_case(seed++, w, input_kind::fp8, 33, 64, rows, 235, 248));
  }
  for (const std::int64_t dim : {100, 256})
    all.push_back(norm_case(seed++, dim, rows));
  all.push_back(quant_case(seed++, 96, rows));
  all.push_back(packing_case(seed++, row_format::fp8_32, 96, rows));
  all.push_back(packing_case(seed++, row_format::fp4_16, 80, rows));
  all.push_back(packing_case(seed++, row_format::fp4_32, 96, rows));
  all.push_back(packing_case(seed++, row_format::plain, 33, rows));
  all.push_back(rope_case(seed++, 3, 48, 16, false, rows));
  all.push_back(rope_case(seed++, 1, 72, 64, true, rows));
  all.push_back(attention_case(seed++, 6, 64, 150, rows));
  all.push_back(attention_case(seed++, 3, 32, 70, rows));
  all.push_back(index_case(seed++, 5, 64, 140, rows));
  all.push_back(mixing_case(seed++, 4, 40, rows));
  all.push_back(mixing_case(seed++, 3, 17, rows));
  all.push_back(route_case(seed++, 64, 6, rows));
  all.push_back(route_case(seed++, 19, 4, rows));
  all.push_back(expert_case(seed++, 72, 5, rows));
  all.push_back(pool_case(seed++, 52, rows));
  all.push_back(engram_case(seed++, 4, 50, rows));
  return all;
}

} // namespace di::kernels
