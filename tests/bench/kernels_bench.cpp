// SPDX-License-Identifier: Apache-2.0
// Kernel speeds beside this machine's stream bandwidth, measured in the same run. JSON on stdout.
//
//   kernels_bench [--isa portable|avx2|avx512] [--threads N] [--rounds N] [--linger-us N]
//                 [--only SUBSTRING]
//
// The shapes are those of the `small` preset. With few rows, matrices are used in turn from a set
// larger than the last-level cache, so that each is read from memory as in decoding.
#include "kernels/kernels.hpp"
#include "kernels/stream.hpp"
#include "tests/support/noise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace di::kernels {
namespace {

struct options {
  const op_table* ops = &best_cpu_ops();
  unsigned threads = 1;
  int rounds = 50;
  int linger_us = 20;
  std::string only;
};

/// Seconds: processor time of this thread when it works alone, so that a busy machine does not
/// count; else time of the wall.
double now_seconds(unsigned threads) {
  timespec t{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Best seconds per call over rounds of at least 0.3 ms.
double best_seconds(const options& o, const std::function<void()>& f) {
  f();
  double best = 1e9;
  for (int r = 0; r < o.rounds; ++r) {
    int calls = 0;
    const double start = now_seconds(o.threads);
    double passed = 0;
    do {
      f();
      ++calls;
      passed = now_seconds(o.threads) - start;
    } while (passed < 0.0003);
    best = std::min(best, passed / calls);
  }
  return best;
}

/// Sums of 64-bit words of buffers beyond the cache, one per thread.
double stream_gb_s(unsigned threads, int rounds) {
  constexpr std::size_t words = 1U << 24; // 128 MiB a thread
  std::vector<std::vector<std::uint64_t>> buffers(threads, std::vector<std::uint64_t>(words, 3));
  std::vector<std::uint64_t> sums(threads);
  const auto read = [&](unsigned t) {
    const std::uint64_t* p = buffers[t].data();
    std::uint64_t a[32] = {};
    for (std::size_t i = 0; i < words; i += 32)
      for (std::size_t j = 0; j < 32; ++j)
        a[j] += p[i + j];
    for (const std::uint64_t v : a)
      sums[t] += v;
  };
  double best = 1e9;
  for (int r = 0; r < rounds; ++r) {
    const double start = now_seconds(threads);
    std::vector<std::thread> pool;
    for (unsigned t = 1; t < threads; ++t)
      pool.emplace_back(read, t);
    read(0);
    for (std::thread& t : pool)
      t.join();
    best = std::min(best, now_seconds(threads) - start);
  }
  return static_cast<double>(words) * 8 * threads / best / 1e9;
}

class report {
public:
  report(const options& o, double stream_rate) : o_(o), stream_(stream_rate) {
    fmt::print("{{\"isa\": \"{}\", \"threads\": {}, \"stream_gb_s\": {:.2f}, \"kernels\": [",
               o.ops->name, o.threads, stream_rate);
  }
  ~report() { fmt::print("\n]}}\n"); }
  report(const report&) = delete;
  report& operator=(const report&) = delete;

  bool wants(const std::string& name) const {
    return (name + " ").find(o_.only) != std::string::npos;
  }

  /// @param bytes  read from memory per call; 0 = not bound by memory
  /// @param macs   multiply-adds per call; 0 = none worth naming
  void add(const std::string& name, double bytes, double macs, const std::function<void()>& f) {
    if (!wants(name))
      return;
    const double s = best_seconds(o_, f);
    fmt::print("{}\n  {{\"name\": \"{}\", \"us\": {:.2f}", first_ ? "" : ",", name, s * 1e6);
    if (bytes > 0)
      fmt::print(", \"gb_s\": {:.2f}, \"of_stream\": {:.3f}", bytes / s / 1e9,
                 bytes / s / 1e9 / stream_);
    if (macs > 0)
      fmt::print(", \"gmac_s\": {:.2f}", macs / s / 1e9);
    fmt::print("}}");
    std::fflush(stdout);
    first_ = false;
  }

private:
  const options& o_;
  double stream_;
  bool first_ = true;
};

/// Copies of one matrix, together at least of the given size.
class weight_ring {
public:
  weight_ring(weight_kind kind, std::int64_t out, std::int64_t in, std::size_t least_bytes) {
    noise r(5);
    const bool fp4 = kind == weight_kind::fp4_row32, f32 = kind == weight_kind::f32;
    const bool fp8 = kind == weight_kind::fp8_tile32;
    bytes_ = static_cast<std::size_t>(out * in);
    bytes_ = fp4 ? bytes_ / 2 : (fp8 ? bytes_ : (f32 ? bytes_ * 4 : bytes_ * 2));
    scales_ = static_cast<std::size_t>(fp4 ? out * in / 32 : (fp8 ? out * in / 1024 : 0));
    const std::size_t each = bytes_ + scales_ + 64, copies = least_bytes / each + 1;
    std::vector<std::uint8_t> one = r.e4m3(static_cast<std::int64_t>(bytes_));
    if (f32 || kind == weight_kind::bf16)
      std::fill(one.begin(), one.end(), std::uint8_t{0x3c});
    const auto scale = r.e8m0(static_cast<std::int64_t>(scales_), 118, 130);
    data_.resize(each * copies);
    for (std::size_t c = 0; c < copies; ++c) {
      std::uint8_t* to = data_.data() + c * each;
      std::copy(one.begin(), one.end(), to);
      std::copy(scale.begin(), scale.end(), to + bytes_);
      all_.push_back({kind, to, scales_ != 0 ? to + bytes_ : nullptr, out, in});
    }
  }

  const weight& next() { return all_[at_++ % all_.size()]; }
  double bytes() const { return static_cast<double>(bytes_ + scales_); }

private:
  std::vector<std::uint8_t> data_;
  std::vector<weight> all_;
  std::size_t bytes_ = 0, scales_ = 0, at_ = 0;
};

void bench_linear(report& out, const options& o, stream& s, const std::string& name,
                  weight_kind kind, std::int64_t n, std::int64_t k, std::int64_t jobs,
                  std::int64_t rows) {
  const std::string title = fmt::format("linear {} {}x{}{} rows {}", name, n, k,
                                        jobs > 1 ? fmt::format(" x{}", jobs) : "", rows);
  if (!out.wants(title))
    return;
  weight_ring ring(kind, n, k, rows > 8 ? 1U << 22 : 64U << 20);
  noise r(9);
  const bool quantised = kind == weight_kind::fp8_tile32 || kind == weight_kind::fp4_row32;
  const auto x = r.normal_bf16(rows * k);
  const auto codes = r.e4m3(rows * k), scales = r.e8m0(rows * k / 32, 118, 124);
  std::vector<float> y(static_cast<std::size_t>(jobs * rows * n));
  std::vector<linear_job> work(static_cast<std::size_t>(jobs));
  out.add(title, rows > 8 ? 0 : ring.bytes() * static_cast<double>(jobs),
          static_cast<double>(jobs * rows * n * k), [&] {
            float* to = y.data();
            for (linear_job& job : work) {
              job.w = ring.next();
              job.x_kind = quantised ? input_kind::fp8 : input_kind::bf16;
              job.x = quantised ? static_cast<const void*>(codes.data()) : x.data();
              job.x_scale = scales.data();
              job.x_stride = k;
              job.x_scale_stride = k / 32;
              job.rows = rows;
              job.y = to;
              job.y_f32 = true;
              job.y_stride = n;
              to += rows * n;
            }
            if (o.ops->linear(s, work) != status::ok)
              std::abort();
          });
}

void bench_linears(report& out, const options& o, stream& s) {
  for (const std::int64_t rows : {1, 2, 4, 8, 32, 128, 512}) {
    bench_linear(out, o, s, "fp4 w1/w3", weight_kind::fp4_row32, 224, 1024, 12, rows);
    bench_linear(out, o, s, "fp4 w2", weight_kind::fp4_row32, 1024, 224, 6, rows);
    bench_linear(out, o, s, "fp8 wq_b", weight_kind::fp8_tile32, 2048, 256, 1, rows);
    bench_linear(out, o, s, "fp8 wo_b", weight_kind::fp8_tile32, 1024, 512, 1, rows);
    bench_linear(out, o, s, "fp8 wide", weight_kind::fp8_tile32, 1024, 1024, 1, rows);
    bench_linear(out, o, s, "bf16 head", weight_kind::bf16, 8192, 1024, 1, rows);
    bench_linear(out, o, s, "f32 mix", weight_kind::f32, 24, 4096, 1, rows);
  }
}

/// Twenty dependent regions of the sizes of one layer, as a decode step issues them.
void bench_sequence(report& out, const options& o, stream& s) {
  noise r(10);
  const auto codes = r.e4m3(1024), scales = r.e8m0(32, 118, 124);
  std::vector<float> y(16 * 1024);
  weight_ring dense(weight_kind::fp8_tile32, 512, 512, 32U << 20);
  weight_ring expert(weight_kind::fp4_row32, 224, 1024, 32U << 20);
  const auto job = [&](weight_ring& ring, std::int64_t at) {
    linear_job j;
    j.w = ring.next();
    j.x_kind = input_kind::fp8;
    j.x = codes.data();
    j.x_scale = scales.data();
    j.x_stride = 1024;
    j.x_scale_stride = 32;
    j.rows = 1;
    j.y = y.data() + at * 1024;
    j.y_f32 = true;
    j.y_stride = 1024;
    return j;
  };
  out.add("sequence of 20 regions", 10 * dense.bytes() + 40 * expert.bytes(), 0, [&] {
    for (int i = 0; i < 10; ++i) {
      const linear_job a = job(dense, 0);
      const std::vector<linear_job> b{job(expert, 1), job(expert, 2), job(expert, 3),
                                      job(expert, 4)};
      if (o.ops->linear(s, {&a, 1}) != status::ok || o.ops->linear(s, b) != status::ok)
        std::abort();
    }
  });
}

void bench_rows(report& out, const options& o, stream& s, std::int64_t rows) {
  constexpr std::int64_t dim = 1024;
  noise r(3);
  const auto n = static_cast<std::size_t>(rows);
  const std::string tail = fmt::format(" rows {}", rows);
  const auto x = r.normal_bf16(rows * dim), w = r.normal_bf16(dim);
  std::vector<bf16> y(x.size());
  std::vector<std::uint8_t> codes(x.size()), scales(x.size() / 32);
  out.add("rms_norm 1024" + tail, 0, 0,
          [&] { o.ops->rms_norm(s, x.data(), dim, w.data(), 1e-20F, rows, dim, y.data(), dim); });
  out.add("act_quant 1024" + tail, 0, 0, [&] {
    o.ops->act_quant(s, x.data(), dim, rows, dim, codes.data(), dim, scales.data(), dim / 32);
  });
  const std::vector<std::int32_t> positions(n, 1234);
  const auto freq = r.normal_f32(16);
  auto q = r.normal_bf16(rows * 16 * 128);
  out.add("rope 16x128" + tail, 0, 0, [&] {
    o.ops->rope(s, q.data(), rows, 16, 128, positions.data(), {freq.data(), 32}, false);
  });
  const auto logits = r.normal_f32(rows * 64), bias = r.normal_f32(64, 0.01F);
  std::vector<std::int32_t> ids(n * 6);
  std::vector<float> weights(n * 6);
  out.add("route 64 top 6" + tail, 0, 0, [&] {
    o.ops->route(s, logits.data(), bias.data(), rows, 64, 6, 1, 1.5F, ids.data(), weights.data());
  });
  const auto g = r.normal_bf16(rows * 6 * 224);
  std::vector<bf16> a(g.size());
  out.add("swiglu 6x224" + tail, 0, 0,
          [&] { o.ops->swiglu(s, g.data(), g.data(), nullptr, 10, rows * 6, 224, a.data()); });
  const auto parts = r.normal_bf16(rows * 6 * dim);
  out.add("combine 6x1024" + tail, 0, 0,
          [&] { o.ops->combine(s, parts.data(), x.data(), rows, 6, dim, y.data()); });
}

void bench_streams(report& out, const options& o, stream& s, std::int64_t rows) {
  constexpr std::int64_t dim = 1024;
  noise r(8);
  const auto n = static_cast<std::size_t>(rows);
  const std::string tail = fmt::format(" rows {}", rows);
  const auto x = r.normal_bf16(rows * dim), big = r.normal_bf16(rows * 4 * dim),
             kv = r.normal_bf16(rows * 5 * dim);
  const auto fn = r.normal_f32(24 * 4 * dim, 0.01F), scale = r.normal_f32(3),
             base = r.normal_f32(24);
  std::vector<float> pre(n * 4), post(n * 4), comb(n * 16);
  std::vector<bf16> y(x.size());
  out.add("hc_mix 4x1024" + tail, 0, static_cast<double>(rows * 24 * 4 * dim), [&] {
    o.ops->hc_mix(s, big.data(), rows, 4, dim, fn.data(), scale.data(), base.data(), 20, 1e-6F,
                  1e-20F, pre.data(), post.data(), comb.data());
  });
  out.add("hc_collapse 4x1024" + tail, 0, 0,
          [&] { o.ops->hc_collapse(s, big.data(), pre.data(), rows, 4, dim, y.data()); });
  auto state = big;
  std::fill(comb.begin(), comb.end(), 0.25F);
  std::fill(post.begin(), post.end(), 0.01F);
  out.add("hc_update 4x1024" + tail, 0, 0, [&] {
    o.ops->hc_update(s, state.data(), x.data(), post.data(), comb.data(), rows, 4, dim);
  });
  out.add("engram_gate 4x1024" + tail, 0, 0, [&] {
    o.ops->engram_gate(s, state.data(), kv.data(), big.data(), big.data(), nullptr, rows, 4, dim,
                       1e-20F);
  });
}

void bench_attention(report& out, const options& o, stream& s, std::int64_t rows) {
  constexpr std::int64_t heads = 16, dim = 128, window = 128, slots = 256;
  noise r(4);
  const auto q = r.normal_bf16(rows * heads * dim), x = r.normal_bf16(slots * dim);
  const std::int64_t size = row_bytes(row_format::fp8_32, dim);
  std::vector<std::byte> packed(static_cast<std::size_t>(slots * size));
  std::vector<const std::byte*> list, all;
  for (std::int64_t i = 0; i < slots; ++i) {
    std::byte* to = packed.data() + i * size;
    o.ops->pack_rows(s, i < window ? row_format::fp8_32 : row_format::fp4_16, x.data() + i * dim,
                     dim, 1, dim, &to);
    list.push_back(to);
  }
  for (std::int64_t i = 0; i < rows; ++i)
    all.insert(all.end(), list.begin(), list.end());
  const auto n = static_cast<std::size_t>(rows);
  const std::vector<std::int32_t> split(n, window), total(n, slots);
  const auto sink = r.normal_f32(heads);
  std::vector<bf16> y(q.size());
  attention_args a;
  a.q = q.data();
  a.rows = rows;
  a.heads = heads;
  a.dim = dim;
  a.kv = all.data();
  a.kv_stride = slots;
  a.window_count = split.data();
  a.total_count = total.data();
  a.sink = sink.data();
  a.scale = 0.0884F;
  a.out = y.data();
  out.add(fmt::format("attention 16x128 slots 256 rows {}", rows), 0,
          static_cast<double>(rows * heads * dim * slots * 2), [&] { o.ops->attention(s, a); });
}

void bench_index(report& out, const options& o, stream& s, std::int64_t rows) {
  constexpr std::int64_t heads = 8, dim = 64, entries = 4096, page = 64;
  noise r(4);
  const auto q = r.normal_bf16(rows * heads * dim), w = r.normal_bf16(rows * heads),
             x = r.normal_bf16(entries * dim);
  const std::int64_t size = row_bytes(row_format::fp4_32, dim);
  std::vector<std::byte> packed(static_cast<std::size_t>(entries * size));
  std::vector<const std::byte*> pages;
  for (std::int64_t i = 0; i < entries; ++i) {
    std::byte* to = packed.data() + i * size;
    o.ops->pack_rows(s, row_format::fp4_32, x.data() + i * dim, dim, 1, dim, &to);
    if (i % page == 0)
      pages.push_back(to);
  }
  const std::vector<std::int32_t> visible(static_cast<std::size_t>(rows), entries);
  std::vector<float> scores(static_cast<std::size_t>(rows * entries));
  const index_score_args a{q.data(),     w.data(), rows,           heads,         dim,
                           pages.data(), page,     visible.data(), scores.data(), entries};
  out.add(fmt::format("index_scores 8x64 entries 4096 rows {}", rows), 0,
          static_cast<double>(rows * heads * dim * entries), [&] { o.ops->index_scores(s, a); });
  std::vector<std::int32_t> sel(128);
  out.add(fmt::format("top_k 128 of 4096 rows {}", rows), 0, 0, [&] {
    for (std::int64_t i = 0; i < rows; ++i)
      o.ops->top_k(s, scores.data() + i * entries, entries, nullptr, 128, sel.data());
  });
}

int run(const options& o) {
  const double rate = stream_gb_s(o.threads, 5);
  const auto s = std::make_unique<cpu_stream>(o.threads, 15000, 1000LL * o.linger_us);
  report out(o, rate);
  bench_linears(out, o, *s);
  bench_sequence(out, o, *s);
  for (const std::int64_t rows : {1, 64}) {
    bench_rows(out, o, *s, rows);
    bench_streams(out, o, *s, rows);
    bench_attention(out, o, *s, rows);
    bench_index(out, o, *s, rows);
  }
  return 0;
}

/// False after saying why.
bool parse(int argc, char** argv, options& o) {
  for (int i = 1; i < argc; i += 2) {
    const std::string_view key = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    bool known = !value.empty();
    if (key == "--threads") {
      o.threads = static_cast<unsigned>(std::max(1, std::atoi(argv[i + 1])));
    } else if (key == "--rounds") {
      o.rounds = std::max(1, std::atoi(argv[i + 1]));
    } else if (key == "--linger-us") {
      o.linger_us = std::atoi(argv[i + 1]);
    } else if (key == "--only") {
      o.only = value;
    } else if (key == "--isa") {
      known = false;
      for (const isa level : {isa::portable, isa::avx2, isa::avx512})
        if (isa_available(level) && value == cpu_ops(level).name) {
          o.ops = &cpu_ops(level);
          known = true;
        }
    } else {
      known = false;
    }
    if (!known) {
      fmt::print(stderr, "kernels_bench: cannot use {} {}\n", key, value);
      return false;
    }
  }
  return true;
}

} // namespace
} // namespace di::kernels

int main(int argc, char** argv) {
  di::kernels::options o;
  return di::kernels::parse(argc, argv, o) ? di::kernels::run(o) : 2;
}
