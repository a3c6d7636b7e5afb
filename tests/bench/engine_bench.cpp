// SPDX-License-Identifier: Apache-2.0
// Speed of whole steps on one rank beside the machine's memory bandwidth, measured in the same run.
// JSON on stdout, one object per line.
//
//   engine_bench [--model DIR] [--threads N] [--runs N] [--context N] TEST...
//   engine_bench ... --profile            adds the share of each kernel (use --runs 1)
//   engine_bench ... --interactive        reads test names from stdin, one line each
//   (peer_fastllm.py)
//
// TEST: pN  prefill of N random tokens, tokens/s
//       dNbB  N decode steps of B different sequences together, after `context` tokens each,
//       tokens/s stream  bytes/s that the threads read from memory
// Without DIR the `small` preset is written into the build tree once. Seconds are processor time of
// the thread if there is one thread (a busy machine then does not count), else wall time; both are
// printed.
#include "tests/support/test_models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <string_view>
#include <thread>
#include <utility>

namespace di::engine {
namespace {

/// Wraps an implementation and adds up the time inside each operation, for --profile.
const kernels::op_table* profiled_ops = nullptr;
std::map<std::string, std::pair<double, std::int64_t>> profile; // operation -> seconds, calls

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <auto Operation, std::size_t Name>
struct timed;
constexpr std::array operation_names{
    "linear",    "rms_norm",     "act_quant",  "pack_rows",   "unpack_rows", "rope",
    "attention", "index_scores", "hc_mix",     "hc_collapse", "hc_update",   "route",
    "swiglu",    "combine",      "pool_pairs", "engram_gate", "top_k"};
template <class... Args, kernels::status (*kernels::op_table::*Operation)(Args...),
          std::size_t Name>
struct timed<Operation, Name> {
  static kernels::status call(Args... args) {
    const double start = thread_seconds();
    const kernels::status status = (profiled_ops->*Operation)(args...);
    auto& [seconds, calls] = profile[operation_names[Name]];
    seconds += thread_seconds() - start;
    ++calls;
    return status;
  }
};

kernels::op_table timed_ops(const kernels::op_table& inner) {
  using t = kernels::op_table;
  profiled_ops = &inner;
  return {inner.name,
          timed<&t::linear, 0>::call,
          timed<&t::rms_norm, 1>::call,
          timed<&t::act_quant, 2>::call,
          timed<&t::pack_rows, 3>::call,
          timed<&t::unpack_rows, 4>::call,
          timed<&t::rope, 5>::call,
          timed<&t::attention, 6>::call,
          timed<&t::index_scores, 7>::call,
          timed<&t::hc_mix, 8>::call,
          timed<&t::hc_collapse, 9>::call,
          timed<&t::hc_update, 10>::call,
          timed<&t::route, 11>::call,
          timed<&t::swiglu, 12>::call,
          timed<&t::combine, 13>::call,
          timed<&t::pool_pairs, 14>::call,
          timed<&t::engram_gate, 15>::call,
          timed<&t::top_k, 16>::call};
}

void print_profile(const std::string& test, double seconds) {
  std::string line = fmt::format("{{\"profile\": \"{}\"", test);
  double known = 0;
  for (const auto& [name, entry] : profile) {
    known += entry.first;
    line += fmt::format(", \"{}\": {{\"share\": {:.3f}, \"calls\": {}}}", name,
                        entry.first / seconds, entry.second);
  }
  fmt::print("{}, \"outside_kernels\": {:.3f}}}\n", line, 1 - known / seconds);
}

struct seconds_pair {
  double cpu = 0, wall = 0;
};

double clock_seconds(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

class stopwatch {
public:
  seconds_pair passed() const {
    return {clock_seconds(CLOCK_THREAD_CPUTIME_ID) - cpu_, clock_seconds(CLOCK_MONOTONIC) - wall_};
  }

private:
  double cpu_ = clock_seconds(CLOCK_THREAD_CPUTIME_ID), wall_ = clock_seconds(CLOCK_MONOTONIC);
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

std::int64_t weight_bytes(const kernels::weight& w) {
  switch (w.kind) {
  case kernels::weight_kind::f32:
    return w.out * w.in * 4;
  case kernels::weight_kind::bf16:
    return w.out * w.in * 2;
  case kernels::weight_kind::fp8_tile32:
    return w.out * w.in + (w.out + 31) / 32 * ((w.in + 31) / 32);
  case kernels::weight_kind::fp4_row32:
    return w.out * w.in / 2 + w.out * w.in / 32;
  case kernels::weight_kind::fp8_row32:
    return w.out * w.in + w.out * w.in / 32;
  }
  return 0;
}

std::int64_t expert_bytes(const expert_weights& e) {
  return weight_bytes(e.w1) + weight_bytes(e.w2) + weight_bytes(e.w3);
}

/// Bytes of weights that every step reads whatever its rows: all but routed experts.
std::int64_t fixed_bytes(const loaded_model& model) {
  const model_spec& spec = model.spec();
  std::int64_t bytes = weight_bytes(model.head());
  const auto backbone = static_cast<std::size_t>(spec.num_hidden_layers);
  for (const layer_weights& w : model.layers().first(backbone)) {
    bytes += 2 * spec.mix_rows() * spec.stream_width() * 4;
    bytes += weight_bytes(w.attention.wq_a) + weight_bytes(w.attention.wq_b)
             + weight_bytes(w.attention.wkv) + weight_bytes(w.attention.wo_b);
    for (const kernels::weight& group : w.attention.wo_a)
      bytes += weight_bytes(group);
    if (w.compressor)
      bytes += weight_bytes(w.compressor->wkv) + weight_bytes(w.compressor->wgate);
    if (w.engram)
      bytes += weight_bytes(w.engram->wkv);
    bytes += weight_bytes(w.moe.gate) + expert_bytes(w.moe.shared);
  }
  return bytes;
}

/// Counts the experts that a step touches on their way to the real runner.
class counting_runner final : public expert_runner {
public:
  explicit counting_runner(expert_runner& inner) : inner_{inner} {}
  result<void> run(std::span<expert_job> jobs) override {
    experts += static_cast<std::int64_t>(jobs.size());
    ++layers;
    return inner_.run(jobs);
  }
  std::int64_t experts = 0, layers = 0;

private:
  expert_runner& inner_;
};

class bench {
public:
  bench(const loaded_model& model, const kernels::op_table& ops, unsigned threads, int runs,
        std::size_t context)
      : model_{model},
        engine_{model, threads, ops, 512},
        counter_{*engine_.experts},
        loop_{*engine_.steps, counter_},
        threads_{threads},
        runs_{runs},
        context_{context} {}

  void run(const std::string& test) {
    profile.clear();
    measured_ = 0;
    if (test == "stream")
      stream();
    else if (test.starts_with('p'))
      prefill(std::stoul(test.substr(1)));
    else if (const auto b = test.find('b'); test.starts_with('d') && b != std::string::npos)
      decode(test, std::stoul(test.substr(1, b - 1)), std::stoul(test.substr(b + 1)));
    else
      fmt::print("{{\"error\": \"unknown test {}\"}}\n", test);
    if (profiled_ops != nullptr && measured_ > 0)
      print_profile(test, measured_);
    std::fflush(stdout);
  }

private:
  std::vector<token_id> tokens(std::size_t count) {
    std::vector<token_id> out(count);
    for (token_id& t : out)
      t = static_cast<token_id>(
          3 + random_() % static_cast<std::uint64_t>(model_.spec().vocab_size - 16));
    return out;
  }
  double seconds(const seconds_pair& p) const { return threads_ == 1 ? p.cpu : p.wall; }
  void must(const result<void>& done) {
    if (!done.ok()) {
      fmt::print(stderr, "{}\n", done.error().render());
      std::exit(1);
    }
  }

  void stream() {
    constexpr std::size_t words = std::size_t{32} << 20; // 256 MiB a thread
    std::vector<std::vector<std::uint64_t>> data(threads_, std::vector<std::uint64_t>(words, 1));
    double best = 0;
    std::uint64_t sink = 0;
    for (int r = 0; r < std::max(runs_, 3); ++r) {
      stopwatch watch;
      std::vector<std::uint64_t> sums(threads_);
      const auto read = [&](unsigned t) {
        std::uint64_t s[8] = {};
        for (std::size_t i = 0; i < words; i += 8)
          for (std::size_t k = 0; k < 8; ++k)
            s[k] += data[t][i + k];
        sums[t] = std::accumulate(s, s + 8, std::uint64_t{0});
      };
      std::vector<std::thread> others;
      for (unsigned t = 1; t < threads_; ++t)
        others.emplace_back(read, t);
      read(0);
      for (std::thread& t : others)
        t.join();
      sink += sums[0];
      best = std::max(best, static_cast<double>(words * 8 * threads_) / seconds(watch.passed()));
    }
    stream_ = sink == 0 ? 0 : best;
    fmt::print("{{\"test\": \"stream\", \"threads\": {}, \"gb_s\": {:.2f}}}\n", threads_,
               stream_ / 1e9);
  }

  void prefill(std::size_t count) {
    std::vector<double> rates, walls;
    for (int r = 0; r < runs_; ++r) {
      const auto prompt = tokens(count);
      const auto sequence = engine_.sequence();
      step_segment segment;
      segment.sequence = sequence.get();
      segment.tokens = prompt;
      const stopwatch watch;
      must(loop_.run({&segment, 1}));
      const seconds_pair passed = watch.passed();
      measured_ += passed.cpu;
      rates.push_back(static_cast<double>(count) / seconds(passed));
      walls.push_back(static_cast<double>(count) / passed.wall);
    }
    fmt::print("{{\"test\": \"p{}\", \"threads\": {}, \"tok_s\": {:.1f}, \"tok_s_max\": {:.1f}, "
               "\"tok_s_wall\": {:.1f}, \"runs\": {}}}\n",
               count, threads_, median(rates), *std::max_element(rates.begin(), rates.end()),
               median(walls), runs_);
  }

  void decode(const std::string& name, std::size_t steps, std::size_t batch) {
    std::vector<double> rates, walls;
    counter_.experts = counter_.layers = 0;
    std::int64_t counted_steps = 0;
    double experts = 0;
    for (int r = 0; r < runs_; ++r) {
      std::vector<std::unique_ptr<sequence_state>> sequences;
      std::vector<std::vector<token_id>> next(batch);
      for (std::size_t b = 0; b < batch; ++b) {
        sequences.push_back(engine_.sequence());
        const auto prompt = tokens(context_);
        step_segment segment;
        segment.sequence = sequences[b].get();
        segment.tokens = prompt;
        must(loop_.run({&segment, 1}));
        next[b] = pick(0);
      }
      counter_.experts = counter_.layers = 0;
      if (r == 0)
        profile.clear();
      const stopwatch watch;
      for (std::size_t s = 0; s < steps; ++s) {
        std::vector<step_segment> segments(batch);
        for (std::size_t b = 0; b < batch; ++b) {
          segments[b].sequence = sequences[b].get();
          segments[b].first_position = static_cast<std::uint32_t>(sequences[b]->length());
          segments[b].tokens = next[b];
        }
        must(loop_.run(segments));
        for (std::size_t b = 0; b < batch; ++b)
          next[b] = pick(b);
      }
      const seconds_pair passed = watch.passed();
      measured_ += passed.cpu;
      rates.push_back(static_cast<double>(steps * batch) / seconds(passed));
      walls.push_back(static_cast<double>(steps * batch) / passed.wall);
      counted_steps += static_cast<std::int64_t>(steps);
      experts += static_cast<double>(counter_.experts) / static_cast<double>(counter_.layers);
    }
    report(name, steps, batch, rates, walls, experts / runs_);
  }

  std::vector<token_id> pick(std::size_t segment) {
    const auto logits = engine_.steps->logits(segment);
    return {static_cast<token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
  }

  void report(const std::string& name, std::size_t steps, std::size_t batch,
              const std::vector<double>& rates, const std::vector<double>& walls,
              double experts_per_layer) {
    const double bytes =
        static_cast<double>(fixed_bytes(model_))
        + experts_per_layer * static_cast<double>(model_.spec().num_hidden_layers)
              * static_cast<double>(expert_bytes(model_.layers().front().moe.experts.front()));
    const double rate = median(rates);
    std::string line = fmt::format(
        "{{\"test\": \"{}\", \"threads\": {}, \"batch\": {}, \"steps\": {}, \"tok_s\": {:.2f}, "
        "\"tok_s_max\": {:.2f}, \"tok_s_wall\": {:.2f}, \"runs\": {}, \"experts_per_layer\": "
        "{:.2f}, "
        "\"mb_per_step\": {:.1f}",
        name, threads_, batch, steps, rate, *std::max_element(rates.begin(), rates.end()),
        median(walls), runs_, experts_per_layer, bytes / 1e6);
    if (stream_ > 0)
      line += fmt::format(", \"share_of_stream\": {:.3f}",
                          rate / static_cast<double>(batch) * bytes / stream_);
    if (batch == 1)
      single_rate_ = rate, single_bytes_ = bytes;
    else if (single_rate_ > 0) {
      const double allowed = static_cast<double>(batch) * single_bytes_ / bytes;
      line += fmt::format(", \"gain\": {:.2f}, \"gain_allowed_by_bytes\": {:.2f}, "
                          "\"share_of_allowed_gain\": {:.3f}",
                          rate / single_rate_, allowed, rate / single_rate_ / allowed);
    }
    fmt::print("{}}}\n", line);
  }

  const loaded_model& model_;
  di::testing::test_engine engine_;
  counting_runner counter_;
  local_expert_loop loop_;
  unsigned threads_;
  int runs_;
  std::size_t context_;
  std::mt19937_64 random_{12345};
  double measured_ = 0; ///< [s] of processor time within the timed parts of a test
  double stream_ = 0, single_rate_ = 0, single_bytes_ = 0;
};

int run(int argc, char** argv) {
  std::string folder;
  unsigned threads = 1;
  int runs = 5;
  std::size_t context = 64;
  bool interactive = false;
  bool with_profile = false;
  std::vector<std::string> tests;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const bool more = i + 1 < argc;
    if (arg == "--interactive")
      interactive = true;
    else if (arg == "--profile")
      with_profile = true;
    else if (arg == "--model" && more)
      folder = argv[++i];
    else if (arg == "--threads" && more)
      threads = static_cast<unsigned>(std::stoul(argv[++i]));
    else if (arg == "--runs" && more)
      runs = std::stoi(argv[++i]);
    else if (arg == "--context" && more)
      context = std::stoul(argv[++i]);
    else
      tests.emplace_back(arg);
  }
  if (folder.empty())
    folder = di::testing::preset_checkpoint("small");
  if (tests.empty() && !interactive)
    tests = {"stream", "d64b1", "d16b8", "p512"};
  const auto model = di::testing::load_model(folder);
  const kernels::op_table timed = timed_ops(kernels::best_cpu_ops());
  if (!with_profile)
    profiled_ops = nullptr;
  bench b{*model, with_profile ? timed : kernels::best_cpu_ops(), threads, runs, context};
  fmt::print("{{\"model\": \"{}\", \"kernels\": \"{}\", \"threads\": {}}}\n", folder,
             kernels::best_cpu_ops().name, threads);
  std::fflush(stdout);
  for (const std::string& test : tests)
    b.run(test);
  for (std::string line; interactive && std::getline(std::cin, line);)
    b.run(line);
  return 0;
}

} // namespace
} // namespace di::engine

int main(int argc, char** argv) {
  try {
    return di::engine::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
