// SPDX-License-Identifier: Apache-2.0
// What the journal costs: the same batches with it on disk and in memory alone, in turn, in one
// process with real ranks (processor time of all threads, so that others on the machine do not
// count), and the processor time of JOURNAL and its writer per token alone, as a share of the
// former: what the first comparison measures, but without its noise. JSON.
//
//   journal_bench [rounds] [model folder] [journal folder]
#include "actors/journal_file.hpp"
#include "engine/core/journal_core.hpp"
#include "messaging/base/log.hpp"
#include "tests/support/bench.hpp"
#include "tests/support/serving_cluster.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <ctime>

namespace di {
namespace {

double processor_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct cost {
  double processor_us = 0; ///< [us] of all threads per token
  double tokens_per_s = 0;
};

cost batch(const test::test_model& model, const std::string& prompts, const std::string& folder) {
  test::cluster_options o;
  o.ranks = 4;
  o.journal = folder;
  const double before = processor_seconds();
  const auto outcome = test::run_batch(model, prompts, o, std::chrono::seconds{300});
  const double used = processor_seconds() - before;
  DI_CHECK(outcome.finished && outcome.finished->failed == 0);
  const auto tokens = static_cast<double>(outcome.finished->output_tokens);
  return {used * 1e6 / tokens, tokens / (static_cast<double>(outcome.finished->elapsed_us) * 1e-6)};
}

/// JOURNAL alone: requests of `length` tokens that come one by one, 64 requests at a time.
double alone_us(const std::string& folder, std::uint32_t length, std::uint64_t& bytes) {
  std::unique_ptr<actors::journal_file> file;
  std::atomic<std::uint64_t> position = 0, size = 0;
  engine::journal_options o;
  if (!folder.empty()) {
    actors::journal_file_options f;
    f.folder = folder;
    f.tell = [&](const proto::journal_written& m) {
      position = m.position;
      size = m.file_bytes;
      position.notify_all();
    };
    file = std::move(actors::journal_file::open(std::move(f), std::nullopt)).value();
    o.sink = file.get();
  }
  const double before = processor_seconds();
  engine::journal_core core{o};
  outbox out;
  core.start({}, out);
  std::uint64_t sent = 0;
  const std::uint64_t requests = 256;
  const auto written = [&] {
    if (!file)
      return;
    proto::journal_written m;
    m.position = position;
    DI_CHECK(core.on(m, {}, out).ok());
  };
  for (std::uint64_t first = 0; first < requests; first += 64) {
    for (std::uint64_t id = first + 1; id <= first + 64; ++id) {
      proto::open_request m;
      m.spec.request = request_id{id};
      m.spec.prompt.assign(64, 1);
      m.spec.sampling.max_tokens = length;
      DI_CHECK(core.on(m, {}, out).ok());
    }
    for (std::uint32_t i = 0; i < length; ++i) {
      for (std::uint64_t id = first + 1; id <= first + 64; ++id) {
        proto::tokens_committed m;
        m.request = request_id{id};
        m.attempt = 1;
        m.first_index = i;
        m.tokens = {static_cast<token_id>(1000 + i)};
        DI_CHECK(core.on(m, {}, out).ok());
        ++sent;
      }
      written(); // once a step
      out.take();
    }
  }
  file.reset(); // all of it is written
  bytes = size;
  return (processor_seconds() - before) * 1e6 / static_cast<double>(sent);
}

int run(int argc, char** argv) {
  log::set_level("warn");
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const std::string folder = argc > 2 ? argv[2] : DI_SOURCE_DIR "/launch/models/demo";
  const std::string journal = argc > 3 ? argv[3] : "/tmp/di-journal-bench";
  auto model = test::test_model::load(folder);
  if (!model) {
    std::fprintf(stderr, "%s\n", model.error().what.c_str());
    return 2;
  }
  std::string prompts;
  for (int i = 0; i < 96; ++i)
    prompts += fmt::format("{{\"id\":{},\"prompt_ids\":[{},2,3,4,5,6,7,8],\"max_tokens\":64,"
                           "\"ignore_eos\":true,\"seed\":{}}}\n",
                           i, 10 + i, i);
  std::vector<double> with_us, without_us, with_rate, without_rate;
  for (int i = 0; i <= rounds; ++i) { // the first one warms up
    actors::remove_journal(journal);
    const cost with = batch(*model, prompts, journal);
    const cost without = batch(*model, prompts, {});
    if (i == 0)
      continue;
    with_us.push_back(with.processor_us);
    without_us.push_back(without.processor_us);
    with_rate.push_back(with.tokens_per_s);
    without_rate.push_back(without.tokens_per_s);
  }
  std::vector<double> disk, memory;
  std::uint64_t bytes = 0, ignored = 0;
  for (int i = 0; i < 5; ++i) {
    actors::remove_journal(journal);
    disk.push_back(alone_us(journal, 256, bytes));
    memory.push_back(alone_us({}, 256, ignored));
  }
  actors::remove_journal(journal);
  const double a = test::median(with_us), b = test::median(without_us);
  fmt::print("{{\"bench\": \"journal\", \"processor\": \"{}\", \"commit\": \"{}\",\n"
             " \"batch\": {{\"ranks\": 4, \"rounds\": {}, \"processor_us_per_token\": {{\"disk\": "
             "{:.2f}, \"memory\": {:.2f}}}, \"cost_percent\": {:.2f},\n"
             "  \"tokens_per_s\": {{\"disk\": {:.0f}, \"memory\": {:.0f}}}}},\n"
             " \"alone\": {{\"processor_us_per_token\": {{\"disk\": {:.3f}, \"memory\": {:.3f}}}, "
             "\"cost_percent\": {:.2f}, \"bytes_per_token\": {:.1f}}}}}\n",
             test::processor(), test::first_line("git rev-parse --short HEAD"), rounds, a, b,
             100 * (a - b) / b, test::median(with_rate), test::median(without_rate),
             test::median(disk), test::median(memory),
             100 * (test::median(disk) - test::median(memory)) / b,
             static_cast<double>(bytes) / (256.0 * 256.0));
  return 0;
}

} // namespace
} // namespace di

int main(int argc, char** argv) {
  return di::run(argc, argv);
}
