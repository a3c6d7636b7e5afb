// SPDX-License-Identifier: Apache-2.0
// Sparse attention with a sink: a query's rows are dequantised once, in blocks of 64 list entries,
// for a run of heads; scores are dot-product tiles, values are summed over rows in list order.
#include "kernels/cpu/attention.hpp"

#include "kernels/cpu/rows.hpp"
#include "kernels/cpu/tile.hpp"

namespace di::kernels::DI_ISA {
namespace {

constexpr std::int64_t block_slots = 64;
constexpr float minus_infinity = -__builtin_inff();
#if defined(DI_ISA_AVX512)
constexpr int value_heads = 4, value_vectors = 4;
#else
constexpr int value_heads = 1, value_vectors = 4;
#endif

/// The heads [h0, h1) of one query.
class query {
public:
  static std::size_t scratch_bytes(std::int64_t heads, std::int64_t dim) {
    const std::int64_t floats = (block_slots + 2 * heads) * dim + 2 * heads * block_slots
                                + 2 * round_up(heads) + block_slots;
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  query(const attention_args& a, std::int64_t r, std::int64_t h0, std::int64_t h1,
        std::byte* scratch)
      : a_(a), r_(r), h0_(h0), heads_(h1 - h0), dim_(a.dim) {
    rows_ = reinterpret_cast<float*>(scratch);
    q_ = rows_ + block_slots * dim_;
    value_ = q_ + heads_ * dim_;
    score_ = value_ + heads_ * dim_;
    p_ = score_ + heads_ * block_slots;
    maximum_ = p_ + heads_ * block_slots;
    denominator_ = maximum_ + round_up(heads_);
    const bf16* q = a_.q + (r * a_.heads + h0) * dim_;
    for (std::int64_t i = 0; i < heads_ * dim_; i += lane_count) {
      load_bf16(q + i).store(q_ + i);
      f32x16::zero().store(value_ + i);
    }
    for (std::int64_t h = 0; h < heads_; ++h) {
      maximum_[h] = minus_infinity;
      denominator_[h] = 0;
    }
  }

  void run() {
    const std::int64_t total = a_.total_count[r_];
    for (std::int64_t from = 0; from < total; from += block_slots)
      block(from, least(block_slots, total - from));
    finish();
  }

private:
  static std::int64_t round_up(std::int64_t n) { return (n + 15) / 16 * 16; }

  void block(std::int64_t from, std::int64_t slots) {
    present_ = 0;
    for (std::int64_t j = 0; j < slots; ++j) {
      const std::byte* row = a_.kv[r_ * a_.kv_stride + from + j];
      if (row == nullptr)
        continue;
      const bool window = from + j < a_.window_count[r_];
      unpack_row(window ? a_.window_format : a_.entry_format, row, dim_, rows_ + present_ * dim_);
      slot_[present_++] = static_cast<int>(j);
    }
    if (present_ == 0)
      return;
    scores();
    for (std::int64_t h = 0; h < heads_; ++h)
      weigh(h);
    values();
  }

  /// score_[h, i] = q_h . row_i over the rows that are present.
  void scores() {
    for (std::int64_t i = 0; i < present_; i += tile_columns) {
      // A short last tile reads rows of an earlier block or unset memory; its results are dropped.
      for (std::int64_t h = 0; h < heads_; h += panel_rows)
        panel_tile_any(least(panel_rows, heads_ - h), rows_ + i * dim_, dim_, q_ + h * dim_, dim_,
                       dim_, score_ + h * block_slots + i, block_slots);
    }
  }

  /// Scores to probabilities of one head, running maximum and denominator.
  void weigh(std::int64_t h) {
    float* score = score_ + h * block_slots;
    float* p = p_ + h * block_slots;
    by_slot(score, p);
    f32x16 top = f32x16::set(maximum_[h]);
    for (std::int64_t i = 0; i < block_slots; i += lane_count)
      top = vmax(f32x16::load(p + i), top);
    const float maximum = max_of(top);
    if (maximum == minus_infinity) { // nothing visible to this head so far
      for (std::int64_t i = 0; i < block_slots; i += lane_count)
        f32x16::zero().store(score + i);
      return;
    }
    top = f32x16::set(maximum);
    const float alpha = math::exp(scalar_f32{maximum_[h] - maximum}).v;
    f32x16 sum = f32x16::zero();
    for (std::int64_t i = 0; i < block_slots; i += lane_count) {
      const f32x16 e = math::exp(f32x16::load(p + i) - top);
      sum = sum + e;
      through_bf16(e).store(dense() ? score + i : p + i);
    }
    denominator_[h] = __builtin_fmaf(denominator_[h], alpha, tree_sum(sum));
    for (std::int64_t i = 0; i < present_ && !dense(); ++i)
      score[i] = p[slot_[i]];
    maximum_[h] = maximum;
    scale_values(h, alpha);
  }

  /// No slot before the last row present is masked: rows stand at their slots.
  bool dense() const { return slot_[present_ - 1] + 1 == present_; }

  /// score[rows present] times the scale to p[slots of the block], -inf where there is no row.
  void by_slot(float* score, float* p) const {
    const f32x16 scale = f32x16::set(a_.scale);
    for (std::int64_t i = 0; i < block_slots; i += lane_count)
      (f32x16::load(score + i) * scale).store(score + i);
    if (dense()) {
      for (std::int64_t i = 0; i < block_slots; i += lane_count)
        f32x16::load(score + i).store(p + i);
      for (std::int64_t i = present_; i < block_slots; ++i)
        p[i] = minus_infinity;
      return;
    }
    for (std::int64_t i = 0; i < block_slots; ++i)
      p[i] = minus_infinity;
    for (std::int64_t i = 0; i < present_; ++i)
      p[slot_[i]] = score[i];
  }

  void scale_values(std::int64_t h, float alpha) {
    const f32x16 scale = f32x16::set(alpha);
    float* value = value_ + h * dim_;
    for (std::int64_t d = 0; d < dim_; d += lane_count)
      (f32x16::load(value + d) * scale).store(value + d);
  }

  template <int H, int D>
  DI_KERNEL_INLINE void value_tile(std::int64_t h, std::int64_t d) {
    f32x16 acc[H][D];
#pragma GCC unroll 4
    for (int i = 0; i < H; ++i)
#pragma GCC unroll 4
      for (int k = 0; k < D; ++k)
        acc[i][k] = f32x16::load(value_ + (h + i) * dim_ + d + 16 * k);
    for (std::int64_t j = 0; j < present_; ++j) {
      f32x16 v[D];
#pragma GCC unroll 4
      for (int k = 0; k < D; ++k)
        v[k] = f32x16::load(rows_ + j * dim_ + d + 16 * k);
#pragma GCC unroll 4
      for (int i = 0; i < H; ++i) {
        const f32x16 p = f32x16::set(score_[(h + i) * block_slots + j]);
#pragma GCC unroll 4
        for (int k = 0; k < D; ++k)
          acc[i][k] = fma(p, v[k], acc[i][k]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < H; ++i)
#pragma GCC unroll 4
      for (int k = 0; k < D; ++k)
        acc[i][k].store(value_ + (h + i) * dim_ + d + 16 * k);
  }

  template <int H>
  void value_heads_from(std::int64_t h) {
    std::int64_t d = 0;
    for (; d + value_vectors * 16 <= dim_; d += value_vectors * 16)
      value_tile<H, value_vectors>(h, d);
    for (; d < dim_; d += 16)
      value_tile<H, 1>(h, d);
  }

  void values() {
    std::int64_t h = 0;
    for (; h + value_heads <= heads_; h += value_heads)
      value_heads_from<value_heads>(h);
    for (; h < heads_; ++h)
      value_heads_from<1>(h);
  }

  void finish() {
    for (std::int64_t h = 0; h < heads_; ++h) {
      const bool seen = maximum_[h] != minus_infinity;
      const float sink = math::exp(scalar_f32{a_.sink[h0_ + h] - maximum_[h]}).v;
      const f32x16 denominator = f32x16::set(seen ? denominator_[h] + sink : 1.0F);
      bf16* out = a_.out + (r_ * a_.heads + h0_ + h) * dim_;
      for (std::int64_t d = 0; d < dim_; d += lane_count)
        store_bf16(out + d, f32x16::load(value_ + h * dim_ + d) / denominator);
    }
  }

  const attention_args& a_;
  std::int64_t r_, h0_, heads_, dim_;
  std::int64_t present_ = 0;
  int slot_[block_slots];
  float* rows_;  ///< [64, dim] dequantised rows of the block, absent ones left out
  float* q_;     ///< [heads, dim]
  float* value_; ///< [heads, dim] running value sums
  float* score_; ///< [heads, 64] scores, then rounded probabilities, of the rows present
  float* p_;     ///< [heads, 64] by slot
  float* maximum_;
  float* denominator_;
};

} // namespace

void attention(cpu_stream& s, const attention_args& a) {
  if (a.rows == 0 || a.heads == 0)
    return;
  // Few queries: cut the heads as well, at the price of dequantising rows more than once.
  const auto threads = static_cast<std::int64_t>(s.threads());
  const std::int64_t parts = a.rows >= 2 * threads ? 1 : least(threads, (a.heads + 3) / 4);
  const std::int64_t heads = ((a.heads + parts - 1) / parts + 3) / 4 * 4;
  const std::int64_t cuts = (a.heads + heads - 1) / heads;
  std::int64_t slots = 0;
  for (std::int64_t r = 0; r < a.rows; ++r)
    slots += a.total_count[r];
  for_units(s, a.rows * cuts, slots * a.heads * a.dim / 16, [&](std::int64_t u, unsigned worker) {
    const std::int64_t h0 = u % cuts * heads, h1 = least(h0 + heads, a.heads);
    query(a, u / cuts, h0, h1, s.worker_scratch(worker, query::scratch_bytes(heads, a.dim))).run();
  });
}

namespace {

constexpr std::int64_t block_keys = 64;
constexpr std::int64_t block_queries = 16;

/// Scores of entries [64 b, 64 b + n) for one query from dots[head, 64].
void score_block(const float* dots, const bf16* weights, std::int64_t heads, std::int64_t n,
                 float* out) {
  for (std::int64_t i = 0; i < n; i += lane_count) {
    f32x16 sum = f32x16::zero();
    for (std::int64_t h = 0; h < heads; ++h) {
      const f32x16 dot = through_bf16(f32x16::load(dots + h * block_keys + i));
      const f32x16 rectified = select_gt(dot, f32x16::zero(), dot, f32x16::zero());
      sum = sum + through_bf16(rectified * f32x16::set(bf16_to_f32(weights[h])));
    }
    store_first(out + i, through_bf16(sum), n - i);
  }
}

/// Prepared queries [rows, heads, dim], even elements of each 32 first.
void split_queries(const index_score_args& a, std::int64_t r, float* to) {
  const std::int64_t size = a.heads * a.dim;
  for (std::int64_t i = 0; i < size; i += 32) {
    f32x16 x = load_bf16(a.q + r * size + i), y = load_bf16(a.q + r * size + i + 16);
    split_pairs(x, y);
    x.store(to + r * size + i);
    y.store(to + r * size + i + 16);
  }
}

} // namespace

void index_scores(cpu_stream& s, const index_score_args& a) {
  const std::int64_t row_size = row_bytes(row_format::fp4_32, a.dim);
  const std::int64_t size = a.heads * a.dim;
  auto* q = reinterpret_cast<float*>(s.shared_scratch(
      cpu_stream::shared::input, static_cast<std::size_t>(a.rows * size) * sizeof(float)));
  for_units(s, a.rows, a.rows * size / 16,
            [&](std::int64_t r, unsigned) { split_queries(a, r, q); });
  const std::int64_t blocks = (a.score_stride + block_keys - 1) / block_keys;
  const std::int64_t groups = (a.rows + block_queries - 1) / block_queries;
  const auto scratch = static_cast<std::size_t>(block_keys * (a.dim + a.heads)) * sizeof(float);
  std::int64_t visible = 0;
  for (std::int64_t r = 0; r < a.rows; ++r)
    visible += a.visible[r];
  for_units(s, blocks * groups, visible * size / 16, [&](std::int64_t u, unsigned worker) {
    const std::int64_t from = u % blocks * block_keys, first = u / blocks * block_queries;
    const std::int64_t last = least(first + block_queries, a.rows);
    auto* keys = reinterpret_cast<float*>(s.worker_scratch(worker, scratch));
    float* dots = keys + block_keys * a.dim;
    std::int64_t decoded = 0;
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t n = most(0, least(block_keys, a.visible[r] - from));
      for (; decoded < n; ++decoded) {
        const std::int64_t j = from + decoded;
        unpack_row_split(a.key_pages[j / a.page_entries] + j % a.page_entries * row_size, a.dim,
                         keys + decoded * a.dim);
      }
      for (std::int64_t i = 0; i < n; i += tile_columns)
        for (std::int64_t h = 0; h < a.heads; h += panel_rows)
          panel_tile_any(least(panel_rows, a.heads - h), keys + i * a.dim, a.dim,
                         q + r * size + h * a.dim, a.dim, a.dim, dots + h * block_keys + i,
                         block_keys);
      float* out = a.scores + r * a.score_stride + from;
      score_block(dots, a.weights + r * a.heads, a.heads, n, out);
      for (std::int64_t i = n; i < least(block_keys, a.score_stride - from); ++i)
        out[i] = minus_infinity;
    }
  });
}

} // namespace di::kernels::DI_ISA
