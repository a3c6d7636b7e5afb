// SPDX-License-Identifier: Apache-2.0
// `linear`: inputs are dequantised to fp32 once per call, then blocks of output columns (times
// blocks of rows) of all jobs are dealt to the threads as equal units.
//
// Few rows: weights are decoded in registers, one pass over memory. More rows: a block of 32 weight
// rows is decoded to fp32 in this thread's scratch once and used by all rows of the unit.
#include "kernels/cpu/linear.hpp"

#include "kernels/cpu/tile.hpp"

#include <type_traits>

namespace di::kernels::DI_ISA {
namespace {

constexpr std::int64_t block_columns = 32; ///< one scale tile
constexpr std::int64_t block_rows = 128;
constexpr std::int64_t prefetch_bytes = 8192; ///< least distance of software prefetch
constexpr std::int64_t result_rows = 8;       ///< most rows whose results wait for being rounded
constexpr std::int64_t few_rows = 24; ///< so many rows use four decoded weight rows at a time
constexpr std::uint8_t largest_fused_scale = 246; ///< times 256 it is still finite

/// One job with its prepared input.
struct work {
  const linear_job* job;
  const float* x;        ///< [rows, x_stride] fp32
  std::int64_t x_stride; ///< floats, a multiple of 16
  std::int64_t input_of; ///< the work that prepares x: itself or an earlier one; -1 = used in place
  std::int64_t columns;  ///< of a unit
  std::int64_t first_unit;
  std::int64_t column_units;
};

struct plan {
  work* works;
  std::int64_t count;
  std::int64_t units;
  cpu_stream* pool;
};

bool is_split(const linear_job& j) {
  return j.w.kind == weight_kind::fp4_row32;
}

std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

bool direct(const linear_job& j) {
  return j.x_kind == input_kind::f32 && !is_split(j) && j.w.in % lane_count == 0
         && j.x_stride % lane_count == 0;
}

bool same_input(const linear_job& a, const linear_job& b) {
  return a.x == b.x && a.x_kind == b.x_kind && a.x_scale == b.x_scale && a.x_stride == b.x_stride
         && a.x_scale_stride == b.x_scale_stride && a.rows == b.rows && a.w.in == b.w.in
         && is_split(a) == is_split(b);
}

/// Row m of a job's input as fp32 in the lane order of its weights, zero-padded to `padded`.
void prepare_row(const linear_job& j, std::int64_t m, float* to, std::int64_t padded) {
  const std::int64_t in = j.w.in;
  for (std::int64_t k = 0; k < padded; k += 32) {
    f32x16 v[2];
    for (int h = 0; h < 2; ++h) {
      const std::int64_t at = k + 16 * h, left = most(0, in - at);
      if (j.x_kind == input_kind::bf16)
        v[h] = load_bf16_first(static_cast<const bf16*>(j.x) + m * j.x_stride + at, left);
      else if (j.x_kind == input_kind::f32)
        v[h] = load_first(static_cast<const float*>(j.x) + m * j.x_stride + at, left);
      else
        v[h] = load_e4m3(static_cast<const std::uint8_t*>(j.x) + m * j.x_stride + at)
               * f32x16::set(e8m0_to_f32(j.x_scale[m * j.x_scale_stride + at / 32]));
    }
    if (is_split(j))
      split_pairs(v[0], v[1]);
    v[0].store(to + k);
    v[1].store(to + k + 16);
  }
}

/// Scale bytes to floats, times `factor`; asks for those that follow.
void prepare_scales(const std::uint8_t* from, std::int64_t n, float factor, float* to) {
  for (std::int64_t i = 0; i < n; i += 64)
    __builtin_prefetch(from + n + i);
  std::int64_t i = 0;
  for (; i + lane_count <= n; i += lane_count)
    (load_e8m0(from + i) * f32x16::set(factor)).store(to + i);
  for (; i < n; ++i)
    to[i] = e8m0_to_f32(from[i]) * factor;
}

bool any_above(const std::uint8_t* from, std::int64_t n, std::uint8_t limit) {
  std::uint8_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i)
    largest = from[i] > largest ? from[i] : largest;
  return largest > limit;
}

/// One unit: columns [n0, n1) of rows [m0, m1) of a job.
class unit {
public:
  /// @param after  the job whose weights come next, for prefetching; null = none
  unit(const work& w, const linear_job* after, std::int64_t n0, std::int64_t n1, std::int64_t m0,
       std::int64_t m1, std::byte* scratch)
      : j_(*w.job),
        after_(after),
        w_(w),
        n0_(n0),
        n1_(n1),
        m0_(m0),
        m1_(m1),
        groups_(j_.w.in / 32),
        padded_(round_up(j_.w.in, lane_count)),
        result_(reinterpret_cast<float*>(scratch)),
        scales_(result_ + result_rows * block_columns),
        panel_(scales_ + block_columns * round_up(groups_ + 1, lane_count)) {}

  static std::size_t scratch_bytes(std::int64_t in) {
    const std::int64_t floats = result_rows * block_columns
                                + block_columns * round_up(in / 32 + 1, lane_count)
                                + block_columns * round_up(in, lane_count);
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  void run() {
    switch (j_.w.kind) {
    case weight_kind::f32:
      return run_as<f32_row>(true);
    case weight_kind::bf16:
      return run_as<bf16_row>(true);
    case weight_kind::fp8_tile32:
    case weight_kind::fp8_row32:
      return run_as<fp8_row>(load_scales());
    case weight_kind::fp4_row32:
      prefetch_scales();
      return run_as<fp4_row>(true);
    }
  }

private:
  bool tiled() const { return j_.w.kind == weight_kind::fp8_tile32; }

  /// Fills scales_ of an fp8 job; true if they are what a fused tile wants.
  bool load_scales() {
    const std::int64_t rows = tiled() ? 1 : n1_ - n0_;
    const std::int64_t first = tiled() ? n0_ / 32 : n0_;
    const std::uint8_t* from = j_.w.scale + first * groups_; // those of the next row follow
    const bool fusible = !any_above(from, rows * groups_, largest_fused_scale);
    factor_ = fusible && m1_ - m0_ <= fused_rows ? 256.0F : 1.0F;
    prepare_scales(from, rows * groups_, factor_, scales_);
    return fusible;
  }

  /// The scale bytes of the unit that will probably come next.
  void prefetch_scales() const {
    const std::int64_t bytes = (n1_ - n0_) * groups_;
    const bool last = n1_ == j_.w.out && after_ != nullptr;
    const std::uint8_t* next = last ? after_->w.scale : j_.w.scale + n1_ * groups_;
    if (next == nullptr)
      return;
    for (std::int64_t i = 0; i < bytes; i += 64)
      __builtin_prefetch(next + i);
  }

  const float* scale_row(std::int64_t n) const {
    return tiled() ? scales_ : scales_ + (n - n0_) * groups_;
  }

  template <class Row>
  DI_KERNEL_INLINE Row row(std::int64_t n) const {
    if constexpr (std::is_same_v<Row, f32_row>)
      return {static_cast<const float*>(j_.w.data) + n * j_.w.in};
    else if constexpr (std::is_same_v<Row, bf16_row>)
      return {static_cast<const bf16*>(j_.w.data) + n * j_.w.in};
    else if constexpr (std::is_same_v<Row, fp8_row>)
      return {static_cast<const std::uint8_t*>(j_.w.data) + n * j_.w.in, scale_row(n)};
    else
      return {static_cast<const std::uint8_t*>(j_.w.data) + n * (j_.w.in / 2),
              j_.w.scale + n * groups_};
  }

  template <class Row>
  std::int64_t row_bytes() const {
    return std::is_same_v<Row, fp4_row> ? j_.w.in / 2
                                        : j_.w.in * static_cast<std::int64_t>(sizeof(*Row::p));
  }

  template <class Row>
  DI_KERNEL_INLINE void run_as(bool may_fuse) {
    const std::int64_t rows = m1_ - m0_;
    if (may_fuse && rows <= least(2, fused_rows))
      return fused<Row, single_columns>();
    if constexpr (fused_rows > 1) {
      // Decoding fp8 costs more than reading inputs twice as often in a tile of two columns.
      if (may_fuse && rows > 4 && rows <= fused_rows && std::is_same_v<Row, fp8_row>)
        return fused<fp8_row, 2>();
      if (may_fuse && rows <= fused_rows)
        return fused<Row, tile_columns>();
    }
    // With few rows four decoded weight rows stay in the first-level cache until all have used
    // them; with many the input does, over all columns of the unit.
    const std::int64_t columns = rows <= few_rows ? tile_columns : block_columns;
    for (std::int64_t n = n0_; n < n1_; n += columns) {
      const std::int64_t end = least(n + columns, n1_);
      decode<Row>(n, end);
      tiles(n, end);
    }
  }

  /// Byte `at` of the weights, of `size` bytes, and of the next job's beyond them.
  const std::byte* weight_at(std::int64_t at, std::int64_t size) const {
    if (at < size || after_ == nullptr)
      return static_cast<const std::byte*>(j_.w.data) + at;
    return static_cast<const std::byte*>(after_->w.data) + (at - size);
  }

  template <class Row, int NR>
  void fused() {
    const std::int64_t bytes = row_bytes<Row>(), lead = most(NR * bytes, prefetch_bytes);
    const std::int64_t tiles = NR == tile_columns ? (m1_ - m0_ + NR - 1) / NR : 1;
    for (std::int64_t n = n0_; n < n1_; n += NR) {
      Row rows[NR];
#pragma GCC unroll 8
      for (int i = 0; i < NR; ++i)
        rows[i] = row<Row>(least(n + i, n1_ - 1));
      const std::byte* ahead = weight_at(n * bytes + lead, j_.w.out * bytes);
      for (std::int64_t t = 0; t < tiles; ++t) { // all but the first find the weights in the cache
        const std::int64_t from = (m1_ - m0_) * t / tiles, to = (m1_ - m0_) * (t + 1) / tiles;
        fused_tile_any<Row, NR>(to - from, rows, w_.x + (m0_ + from) * w_.x_stride, w_.x_stride,
                                j_.w.in, ahead, result_ + from * block_columns + n - n0_,
                                block_columns);
      }
    }
    store(m0_, m1_ - m0_, n0_, n1_);
  }

  /// Weight rows [from, to) to fp32, zero-padded, and the last of them once more up to a whole
  /// tile.
  template <class Row>
  void decode(std::int64_t from, std::int64_t to) {
    const std::int64_t bytes = row_bytes<Row>();
    for (std::int64_t n = from; n < from + round_up(to - from, tile_columns); ++n) {
      const Row source = row<Row>(least(n, to - 1));
      const auto* ahead = static_cast<const std::byte*>(j_.w.data) + n * bytes + prefetch_bytes;
      float* panel = panel_ + (n - from) * padded_;
      for (std::int64_t g = 0; g < groups_; ++g) {
        f32x16 a, b;
        __builtin_prefetch(ahead + g * Row::group_bytes);
        if constexpr (std::is_same_v<Row, fp8_row>) {
          const f32x16 s = f32x16::set(source.scale[g]), up = f32x16::set(256.0F / factor_);
          a = (e4m3_256th(source.p + 32 * g) * up) * s;
          b = (e4m3_256th(source.p + 32 * g + 16) * up) * s;
        } else {
          source.group(g, a, b);
        }
        a.store(panel + 32 * g);
        b.store(panel + 32 * g + 16);
      }
      for (std::int64_t k = 32 * groups_; k < j_.w.in; k += lane_count)
        source.first(k, j_.w.in - k).store(panel + k);
    }
  }

  /// All rows of the unit times the decoded weight rows [from, to).
  void tiles(std::int64_t from, std::int64_t to) {
    const std::int64_t count = (m1_ - m0_ + panel_rows - 1) / panel_rows;
    for (std::int64_t t = 0; t < count; ++t) { // tiles of nearly equal height
      const std::int64_t m = m0_ + (m1_ - m0_) * t / count;
      const std::int64_t rows = m0_ + (m1_ - m0_) * (t + 1) / count - m;
      const float* x = w_.x + m * w_.x_stride;
      for (std::int64_t n = 0; n < to - from; n += tile_columns)
        panel_tile_any(rows, panel_ + n * padded_, padded_, x, w_.x_stride, padded_, result_ + n,
                       block_columns);
      store(m, rows, from, to);
    }
  }

  /// result_[0 .. rows, 0 .. to - from) to y.
  void store(std::int64_t m, std::int64_t rows, std::int64_t from, std::int64_t to) const {
    const std::int64_t n = to - from;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < n; c += lane_count) {
        const f32x16 v = f32x16::load(result_ + r * block_columns + c);
        const std::int64_t at = (m + r) * j_.y_stride + from + c;
        if (j_.y_f32)
          store_first(static_cast<float*>(j_.y) + at, v, n - c);
        else
          store_bf16_first(static_cast<bf16*>(j_.y) + at, v, n - c);
      }
    }
  }

  const linear_job& j_;
  const linear_job* after_;
  const work& w_;
  std::int64_t n0_, n1_, m0_, m1_;
  std::int64_t groups_, padded_;
  float factor_ = 1.0F; ///< already in scales_
  float* result_;       ///< [result_rows, block_columns]
  float* scales_;       ///< [block_columns, groups] or one row of a tile
  float* panel_;        ///< [block_columns, padded]
};

void run_units(void* context, std::int64_t begin, std::int64_t end, unsigned worker) {
  const plan& p = *static_cast<const plan*>(context);
  std::int64_t low = 0;
  for (std::int64_t high = p.count - 1; low < high;) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (p.works[middle].first_unit <= begin)
      low = middle;
    else
      high = middle - 1;
  }
  const work* w = p.works + low;
  for (std::int64_t u = begin; u < end; ++u) {
    while (w + 1 < p.works + p.count && w[1].first_unit <= u)
      ++w;
    const std::int64_t at = u - w->first_unit;
    const std::int64_t n0 = at % w->column_units * w->columns;
    const std::int64_t m0 = at / w->column_units * block_rows;
    const linear_job* after = w + 1 < p.works + p.count ? w[1].job : nullptr;
    unit(*w, after, n0, least(n0 + w->columns, w->job->w.out), m0,
         least(m0 + block_rows, w->job->rows),
         p.pool->worker_scratch(worker, unit::scratch_bytes(w->job->w.in)))
        .run();
  }
}

void prepare_rows(void* context, std::int64_t begin, std::int64_t end, unsigned) {
  const work& w = *static_cast<const work*>(context);
  for (std::int64_t m = begin; m < end; ++m)
    prepare_row(*w.job, m, const_cast<float*>(w.x) + m * w.x_stride, w.x_stride);
}

/// Bytes that a unit's worth of work reads or multiplies, as an estimate of its time on one thread.
std::int64_t cost_ns(const linear_job& j) {
  const std::int64_t weights = j.w.out * j.w.in;
  return weights / 48 + weights * j.rows / 100;
}

/// Lays out inputs and units; returns the floats of input scratch that are needed.
std::int64_t lay_out(const linear_job* jobs, std::int64_t count, unsigned threads, plan& p) {
  std::int64_t floats = 0;
  std::int64_t coarse = 0;
  for (std::int64_t i = 0; i < count; ++i)
    coarse += (jobs[i].w.out + block_columns - 1) / block_columns
              * ((jobs[i].rows + block_rows - 1) / block_rows);
  // Few units: cut finer, so that all threads have something to do to the end.
  const std::int64_t columns = coarse < 4 * static_cast<std::int64_t>(threads) ? 8 : block_columns;
  for (std::int64_t i = 0; i < count; ++i) {
    const linear_job& j = jobs[i];
    if (j.rows == 0 || j.w.out == 0)
      continue;
    work& w = p.works[p.count];
    w.job = &j;
    w.columns = columns;
    w.column_units = (j.w.out + columns - 1) / columns;
    w.first_unit = p.units;
    w.x_stride = round_up(j.w.in, 32);
    w.x = nullptr;
    w.input_of = p.count;
    if (direct(j)) {
      w.x = static_cast<const float*>(j.x);
      w.x_stride = j.x_stride;
      w.input_of = -1;
    }
    for (std::int64_t b = p.count - 1; w.input_of == p.count && b >= most(0, p.count - 4); --b)
      if (same_input(j, *p.works[b].job))
        w.input_of = p.works[b].input_of;
    if (w.input_of == p.count)
      floats += j.rows * w.x_stride;
    p.units += w.column_units * ((j.rows + block_rows - 1) / block_rows);
    ++p.count;
  }
  return floats;
}

} // namespace

void linear(cpu_stream& s, const linear_job* jobs, std::int64_t count) {
  plan p{reinterpret_cast<work*>(s.shared_scratch(cpu_stream::shared::plan,
                                                  static_cast<std::size_t>(count) * sizeof(work))),
         0, 0, &s};
  const std::int64_t floats = lay_out(jobs, count, s.threads(), p);
  auto* x = reinterpret_cast<float*>(s.shared_scratch(
      cpu_stream::shared::input, static_cast<std::size_t>(floats) * sizeof(float)));
  std::int64_t cost = 0;
  for (std::int64_t i = 0; i < p.count; ++i) {
    work& w = p.works[i];
    cost += cost_ns(*w.job);
    if (w.input_of != i) {
      if (w.input_of >= 0)
        w.x = p.works[w.input_of].x;
      continue;
    }
    w.x = x;
    x += w.job->rows * w.x_stride;
    s.run(w.job->rows, w.job->rows * w.x_stride / 16, prepare_rows, &w);
  }
  s.run(p.units, cost, run_units, &p);
}

} // namespace di::kernels::DI_ISA
