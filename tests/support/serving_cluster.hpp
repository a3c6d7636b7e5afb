// SPDX-License-Identifier: Apache-2.0
// All serving actors of a cluster in one process over a local post office: ranks with real models,
// but no wire and no processes.
#pragma once

#include "actors/journal_file.hpp"
#include "actors/serving_boot.hpp"
#include "engine/model/kv_layout.hpp"
#include "messaging/proto/membership.hpp"
#include "tests/support/local_office.hpp"

#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

namespace di::test {

struct cluster_options {
  std::uint32_t ranks = 1;
  std::uint32_t redundant = 0;
  std::uint32_t step_rows = 256;
  std::uint32_t prefill_rows = 0;
  std::uint32_t pages = 64; ///< of each rank's pool
  std::uint32_t window = 128;
  unsigned threads = 1;
  engine::rebalance_policy rebalance{};
  std::uint32_t steps_in_flight = 2;
  std::string speculation = "off";
  double step_ms = 0;
  double profile_ms = 0;
  std::uint64_t snapshot_bytes = 0;
  std::string journal; ///< folder; empty: it is kept in memory
};

/// A model with its tokenizer, loaded once per test program.
struct test_model {
  std::shared_ptr<const engine::loaded_model> weights;
  actors::model_outline outline;

  static result<test_model> load(const std::filesystem::path& folder) {
    test_model m;
    DI_TRY(m.weights, engine::loaded_model::load(folder.string()));
    DI_TRY(m.outline, actors::read_model_outline(folder));
    return m;
  }
};

/// What came out of a batch.
struct batch_outcome {
  std::vector<std::string> lines;
  std::optional<proto::batch_finished> finished; ///< empty: it did not end before the deadline
  std::map<std::string, double, std::less<>> counters; ///< of all actors
};

/// Runs a batch from start to end. @param limit  real time that it may take
inline batch_outcome run_batch(const test_model& m, const std::string& prompts,
                               const cluster_options& options,
                               std::chrono::seconds limit = std::chrono::seconds{60}) {
  std::mutex guard;
  std::condition_variable changed;
  batch_outcome outcome;
  local_office office;
  std::unique_ptr<actors::journal_file> journal; // outlives the actors
  actors::control_settings control;
  if (!options.journal.empty()) {
    actors::journal_file_options o;
    o.folder = options.journal;
    o.tell = [&office](const proto::journal_written& written) {
      envelope mail;
      mail.to = "/control/journal";
      mail.from = "/control";
      mail.body = parcel::of(written);
      (void)office.post(std::move(mail));
    };
    journal = std::move(actors::journal_file::open(std::move(o), std::nullopt)).value();
    control.journal.sink = journal.get();
  }
  actors::system actors{{}, office};
  control.redundant_experts = options.redundant;
  control.rebalance = options.rebalance;
  DI_CHECK(actors::spawn_control_serving(actors, m.outline, control).ok());
  actors::batch_settings front;
  front.prompts = prompts;
  front.window = options.window;
  front.draw_seed = [] { return 7; };
  front.write = [&](std::string_view line) -> result<void> {
    const std::lock_guard lock{guard};
    outcome.lines.emplace_back(line);
    return {};
  };
  front.finished = [&](const proto::batch_finished& done) {
    const std::lock_guard lock{guard};
    outcome.finished = done;
    changed.notify_all();
  };
  DI_CHECK(actors::spawn_batch_gateway(actors, m.outline, std::move(front)).ok());

  proto::view_committed view;
  view.view = epoch{1};
  for (std::uint32_t r = 0; r < options.ranks; ++r) {
    actors::rank_settings settings;
    settings.rank = rank_id{r};
    settings.life = incarnation{1000 + r};
    settings.threads = options.threads;
    settings.rebalance = options.rebalance;
    settings.kv_tokens = std::uint64_t{options.pages} * engine::page_tokens;
    settings.step_rows = options.step_rows;
    settings.prefill_rows = options.prefill_rows;
    settings.steps.steps_in_flight = options.steps_in_flight;
    settings.steps.speculation = engine::parse_speculation(options.speculation).value();
    settings.steps.step_ms = options.step_ms;
    settings.steps.profile_ms = options.profile_ms;
    settings.steps.snapshot_bytes = options.snapshot_bytes;
    DI_CHECK(actors::spawn_rank_serving(actors, m.weights, m.outline, settings).ok());
    view.members.push_back({settings.rank, {}, settings.life, fmt::format("/rank/{}", r)});
  }
  envelope begin;
  begin.to = "/control/rebalancer";
  begin.from = "/control/membership";
  begin.body = parcel::of(std::move(view));
  DI_CHECK(office.post(std::move(begin)).ok());
  {
    std::unique_lock lock{guard};
    changed.wait_for(lock, limit, [&] { return outcome.finished.has_value(); });
  }
  outcome.counters = actors.counters().totals();
  actors.stop_all(std::chrono::seconds{10});
  const std::lock_guard lock{guard};
  return outcome;
}

} // namespace di::test
