// SPDX-License-Identifier: Apache-2.0
// Time from a resumed attempt's assignment to its first new token, when KV is restored from a buddy
// and when it is computed again, by length of the context; and what keeping copies costs while
// nothing fails, A/B. JSON on stdout, one object per line.
//
//   kv_restore_bench [--model DIR] [--runs N] [--tokens N] [--output N]
//
// Ranks with real models, shards and agents stand on one thread; bytes between them are copied, not
// sent through sockets. Seconds are processor time of that thread, so a busy machine does not
// count; the median of the runs is printed. Without DIR the `small` preset is written into the
// build tree once; --tokens limits the contexts to this one.
#include "tests/support/bench.hpp"
#include "tests/support/kv_ranks.hpp"
#include "tests/support/test_models.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

namespace di::test {
namespace {

struct arguments {
  std::string model;
  int runs = 3;
  std::size_t tokens = 0;
  std::uint32_t output = 160;
};

double seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

kv_ranks_setting setting_for(std::size_t context, std::uint32_t replicas) {
  kv_ranks_setting s;
  s.replicas = replicas;
  s.context_tokens = static_cast<std::uint32_t>(context) + 1024;
  s.pages = static_cast<std::uint32_t>(context / 128 + 64);
  s.token_us = 0;     // as measured
  s.unlimited = true; // computing takes no virtual time
  return s;
}

proto::request_spec spec_of(std::uint64_t id, std::size_t prompt, std::uint32_t output) {
  proto::request_spec s;
  s.request = request_id{id};
  for (std::size_t i = 0; i < prompt; ++i)
    s.prompt.push_back(static_cast<token_id>(5 + (i * 7919 + i * i + id) % 1500));
  s.sampling.max_tokens = output;
  s.sampling.temperature = 1;
  s.sampling.seed = id;
  s.sampling.ignore_eos = true;
  s.prefix = proto::prefix_mode::exact;
  return s;
}

struct resumption {
  double ms = 0;
  std::uint64_t rows = 0, bytes = 0, items = 0;
  std::vector<token_id> tokens;
};

resumption resume(const std::shared_ptr<const engine::loaded_model>& model, std::size_t context,
                  std::uint32_t output, std::uint32_t replicas) {
  kv_ranks ranks{setting_for(context, replicas), 1, model};
  const std::uint32_t before = output - 8;
  ranks.assign(rank_id{1}, spec_of(1, 300, 4)); // measures what a token costs there
  ranks.finish();
  ranks.assign(rank_id{0}, spec_of(2, context - before, output + 64));
  ranks.run_until([&] {
    return !ranks.request(2).choices.empty() && ranks.request(2).choices[0].tokens.size() >= before;
  });
  resumption r;
  const auto rows = ranks.rank(rank_id{1}).core().rows();
  ranks.kill(rank_id{0});
  ranks.idle(std::chrono::milliseconds{1});
  const std::size_t known = ranks.request(2).choices[0].tokens.size();
  const double start = seconds();
  ranks.resume(rank_id{1}, 2);
  ranks.run_until([&] { return ranks.request(2).choices[0].tokens.size() > known; });
  r.ms = (seconds() - start) * 1e3;
  r.rows = ranks.rank(rank_id{1}).core().rows() - rows;
  r.items = ranks.agent(rank_id{1}).on(proto::get_kv_agent{}).value().restored_items;
  r.bytes = ranks.agent(rank_id{2}).store().held_bytes();
  ranks.finish();
  r.tokens = ranks.request(2).choices[0].tokens;
  return r;
}

/// Processor time of a batch without any fault; that of the buddies is in it.
double batch_ms(const std::shared_ptr<const engine::loaded_model>& model, std::uint32_t replicas,
                std::uint64_t& pushed) {
  kv_ranks ranks{setting_for(4096, replicas), 1, model};
  const double start = seconds();
  for (std::uint64_t id = 1; id <= 6; ++id)
    ranks.assign(rank_id{0}, spec_of(id, 400, 256));
  ranks.finish();
  pushed = ranks.agent(rank_id{0}).on(proto::get_kv_agent{}).value().pushed_bytes;
  return (seconds() - start) * 1e3;
}

void run(const arguments& a, const std::shared_ptr<const engine::loaded_model>& model) {
  std::vector<std::size_t> contexts{2048, 8192, 16384};
  if (a.tokens > 0)
    contexts = {a.tokens};
  for (const std::size_t context : contexts) {
    std::vector<double> restored, computed;
    resumption last, plain;
    for (int i = 0; i < a.runs; ++i) {
      last = resume(model, context, a.output, 1);
      plain = resume(model, context, a.output, 0);
      restored.push_back(last.ms);
      computed.push_back(plain.ms);
    }
    fmt::print("{{\"what\":\"resume\",\"context_tokens\":{},\"restore_ms\":{:.1f},"
               "\"recompute_ms\":{:.1f},\"speedup\":{:.2f},\"rows_restore\":{},"
               "\"rows_recompute\":{},\"pieces\":{},\"held_bytes\":{},\"same_bytes\":{}}}\n",
               context, median(restored), median(computed), median(computed) / median(restored),
               last.rows, plain.rows, last.items, last.bytes, last.tokens == plain.tokens);
    std::fflush(stdout);
  }
  std::vector<double> with, without;
  std::uint64_t pushed = 0, none = 0;
  for (int i = 0; i < a.runs; ++i) {
    without.push_back(batch_ms(model, 0, none));
    with.push_back(batch_ms(model, 1, pushed));
  }
  fmt::print(
      "{{\"what\":\"steady\",\"replicas_0_ms\":{:.1f},\"replicas_1_ms\":{:.1f},"
      "\"cost_percent\":{:.2f},\"pushed_bytes\":{},\"processor\":\"{}\",\"commit\":\"{}\"}}\n",
      median(without), median(with), (median(with) / median(without) - 1) * 100, pushed,
      processor(), first_line("git -C " DI_SOURCE_DIR " rev-parse --short HEAD"));
}

} // namespace
} // namespace di::test

int main(int argc, char** argv) {
  di::test::arguments a;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i];
    const auto number = std::strtoul(argv[i + 1], nullptr, 10);
    if (key == "--model")
      a.model = argv[i + 1];
    else if (key == "--runs")
      a.runs = static_cast<int>(number);
    else if (key == "--tokens")
      a.tokens = number;
    else if (key == "--output")
      a.output = static_cast<std::uint32_t>(number);
    else {
      fmt::print(stderr, "{}: unknown\n", key);
      return 2;
    }
  }
  if (a.runs < 1 || a.output < 16 || (a.tokens > 0 && a.tokens <= a.output)) {
    fmt::print(stderr, "expected runs at least 1, output at least 16, tokens above output\n");
    return 2;
  }
  di::test::run(a, di::testing::load_model(a.model.empty() ? di::testing::preset_checkpoint("small")
                                                           : a.model));
  return 0;
}
