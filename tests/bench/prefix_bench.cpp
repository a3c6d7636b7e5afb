// SPDX-License-Identifier: Apache-2.0
// Time to first token of a prompt behind a cached prefix, in every mode, beside a cold run: the
// same prompt, one rank, interleaved. JSON on stdout, one object per line.
//
//   prefix_bench [--model DIR] [--threads N] [--runs N] [--prompt N] [--tail N] [--chunk N]
//
// The cache knows all of the prompt but the last `tail` tokens. Without DIR the `small` preset is
// written into the build tree once. Seconds are processor time of the thread if there is one thread
// (a busy machine then does not count), else wall time; the least of the runs is printed.
#include "engine/model/prefix_cache.hpp"
#include "tests/support/counting_runner.hpp"
#include "tests/support/test_models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <random>
#include <string_view>

namespace di::engine {
namespace {

struct arguments {
  std::string model;
  unsigned threads = 1;
  int runs = 3;
  std::size_t prompt = 4096, tail = 300, chunk = 512;
};

double seconds(bool wall) {
  timespec t{};
  clock_gettime(wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

void must(const result<void>& done) {
  if (!done.ok()) {
    fmt::print(stderr, "{}\n", done.error().render());
    std::exit(1);
  }
}

/// A rank's engine and cache.
struct bench {
  bench(const loaded_model& m, const arguments& a, std::size_t snapshot_bytes)
      : rank{m, a.threads, kernels::best_cpu_ops(),
             static_cast<std::uint32_t>(3 * (a.prompt / page_tokens + 2))},
        cache{*rank.pool, make_prefill_rules(m.spec()), {"bench", page_tokens, snapshot_bytes}},
        steps{*rank.steps},
        loop{steps, *rank.experts} {}

  /// Runs a prompt to its first logits.
  void prefill(const std::vector<token_id>& prompt, const prefill_request& request,
               std::size_t chunk) {
    const auto sequence = rank.sequence();
    auto started = cache.start(*sequence, prompt, request);
    if (!started.ok())
      must(fail(started.error()));
    session = *started;
    while (static_cast<std::size_t>(sequence->length()) < prompt.size()) {
      const auto at = static_cast<std::size_t>(sequence->length());
      const std::size_t end = std::min(
          {at + chunk, prompt.size(),
           static_cast<std::size_t>(cache.chunk_end(session, static_cast<std::int64_t>(at)))});
      const step_segment segment{sequence.get(), static_cast<std::uint32_t>(at),
                                 std::span{prompt}.subspan(at, end - at),
                                 end == prompt.size() ? logits_wanted::last : logits_wanted::none};
      must(cache.index().make_room(
          static_cast<std::uint32_t>(sequence->pages_wanted(static_cast<std::int64_t>(end)))));
      must(loop.run({&segment, 1}));
      must(cache.advanced(session, *sequence, sequence->length()));
    }
  }

  di::testing::test_engine rank;
  prefix_cache cache;
  di::testing::counting_runner steps;
  local_expert_loop loop;
  prefix_session session;
};

struct way {
  const char* name;
  proto::prefill_mode prefill;
  proto::prefix_mode prefix;
  bool snapshots;
};

constexpr way ways[] = {
    {"cold full", proto::prefill_mode::full, proto::prefix_mode::off, false},
    {"cold compact", proto::prefill_mode::compact, proto::prefix_mode::off, false},
    {"exact snapshot full", proto::prefill_mode::full, proto::prefix_mode::exact, true},
    {"exact snapshot compact", proto::prefill_mode::compact, proto::prefix_mode::exact, true},
    {"exact halo full", proto::prefill_mode::full, proto::prefix_mode::exact, false},
    {"exact halo compact", proto::prefill_mode::compact, proto::prefix_mode::exact, false},
    {"bounded full", proto::prefill_mode::full, proto::prefix_mode::bounded, false},
    {"bounded compact", proto::prefill_mode::compact, proto::prefix_mode::bounded, false},
};

void run(const arguments& a, const loaded_model& model) {
  std::mt19937 random{7};
  const auto vocab = static_cast<std::uint32_t>(model.spec().vocab_size);
  std::vector<token_id> prompt(a.prompt);
  for (token_id& t : prompt)
    t = static_cast<token_id>(random() % vocab);
  std::vector<double> best(std::size(ways), std::numeric_limits<double>::max());
  std::vector<std::string> lines(std::size(ways));
  for (int round = 0; round < a.runs; ++round)
    for (std::size_t w = 0; w < std::size(ways); ++w) {
      bench b{model, a, ways[w].snapshots ? std::size_t{1} << 30 : 0};
      std::vector<token_id> earlier{prompt.begin(),
                                    prompt.end() - static_cast<std::ptrdiff_t>(a.tail)};
      earlier.resize(earlier.size() + 200);
      prefill_request request{static_cast<std::int64_t>(earlier.size()), ways[w].prefill, 0,
                              proto::prefix_mode::exact};
      // Two prompts with other ends: the second one leaves a snapshot where they part.
      for (const token_id end : {1, 2}) {
        std::fill(earlier.end() - 200, earlier.end(), end);
        if (ways[w].prefix != proto::prefix_mode::off)
          b.prefill(earlier, request, a.chunk);
      }
      b.steps.reset();
      request.prompt_tokens = static_cast<std::int64_t>(prompt.size());
      request.prefix = ways[w].prefix;
      const double start = seconds(a.threads > 1);
      b.prefill(prompt, request, a.chunk);
      best[w] = std::min(best[w], seconds(a.threads > 1) - start);
      std::int64_t rows = 0;
      for (std::int64_t layer = 0; layer < model.spec().num_hidden_layers; ++layer)
        rows += b.steps.rows(layer);
      lines[w] = fmt::format(
          R"("way":"{}","prompt_tokens":{},"hit_tokens":{},"first_row":{},"rows_x_layers":{})",
          ways[w].name, prompt.size(), b.session.hit, b.session.first_row, rows);
    }
  for (std::size_t w = 0; w < std::size(ways); ++w)
    fmt::print("{{{},\"ms\":{:.1f},\"speedup\":{:.2f}}}\n", lines[w], best[w] * 1e3,
               best[0] / best[w]);
}

} // namespace
} // namespace di::engine

int main(int argc, char** argv) {
  di::engine::arguments a;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i];
    const auto number = static_cast<std::size_t>(std::strtoul(argv[i + 1], nullptr, 10));
    if (key == "--model")
      a.model = argv[i + 1];
    else if (key == "--threads")
      a.threads = static_cast<unsigned>(number);
    else if (key == "--runs")
      a.runs = static_cast<int>(number);
    else if (key == "--prompt")
      a.prompt = number;
    else if (key == "--tail")
      a.tail = number;
    else if (key == "--chunk")
      a.chunk = number;
    else {
      fmt::print(stderr, "{}: unknown\n", key);
      return 2;
    }
  }
  if (a.prompt <= a.tail || a.chunk == 0 || a.runs < 1 || a.threads < 1) {
    fmt::print(stderr, "expected prompt > tail, chunk, runs and threads at least 1\n");
    return 2;
  }
  const auto model =
      di::testing::load_model(a.model.empty() ? di::testing::preset_checkpoint("small") : a.model);
  di::engine::run(a, *model);
  return 0;
}
