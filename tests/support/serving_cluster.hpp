// SPDX-License-Identifier: Apache-2.0
// All serving actors of a cluster in one process over a local post office: ranks with real models,
// but no wire and no processes.
#pragma once

#include "actors/batch_gateway.hpp"
#include "actors/expert_shard.hpp"
#include "actors/rank.hpp"
#include "actors/serving.hpp"
#include "actors/system.hpp"
#include "engine/core/text_sampler.hpp"
#include "engine/model/runners.hpp"
#include "messaging/proto/membership.hpp"
#include "tests/support/local_office.hpp"

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>

namespace di::testing {

struct cluster_options {
  std::uint32_t ranks = 1;
  std::uint32_t redundant = 0;
  std::uint32_t step_rows = 256;
  std::uint32_t pages = 64; ///< of each rank's pool
  std::uint32_t window = 128;
  unsigned threads = 1;
};

/// A model with its tokenizer, loaded once per test program.
struct test_model {
  std::shared_ptr<const engine::loaded_model> model;
  std::shared_ptr<const engine::tokenizer> words;

  static result<test_model> load(const std::filesystem::path& folder) {
    test_model m;
    DI_TRY(m.model, engine::loaded_model::load(folder.string()));
    DI_TRY(auto words, engine::tokenizer::load(folder / "tokenizer.json"));
    m.words = std::make_shared<const engine::tokenizer>(std::move(words));
    return m;
  }
};

/// What came out of a batch.
struct batch_outcome {
  std::vector<std::string> lines;
  std::optional<proto::batch_finished> finished; ///< empty: it did not end before the deadline
};

/// Runs a batch from start to end. @param limit  real time that it may take
inline batch_outcome run_batch(const test_model& m, const std::string& prompts,
                               const cluster_options& options,
                               std::chrono::seconds limit = std::chrono::seconds{60}) {
  std::mutex guard;
  std::condition_variable changed;
  batch_outcome outcome;
  local_office office;
  actors::system actors{{}, office};
  const engine::model_spec& spec = m.model->spec();
  const auto spawn = [&](const address& path, std::unique_ptr<core_handle> core, bool detached) {
    actors::spawn_options how;
    how.detached = detached;
    const auto started = actors.spawn(path, std::move(core), how);
    DI_CHECK(started.ok());
  };
  const engine::batch_limits limits{m.words.get(), static_cast<std::size_t>(spec.vocab_size),
                                    static_cast<std::uint32_t>(spec.max_position_embeddings)};
  const std::vector<token_id> eos{spec.eos_token_id};

  actors::batch_parts front;
  front.work = engine::read_batch(prompts, limits, "/gateway/0", [] { return 7; });
  front.words = m.words;
  front.eos_ids = eos;
  front.options.window = options.window;
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

  engine::rebalancer_options placing;
  placing.groups = {{0, static_cast<std::uint32_t>(spec.num_hidden_layers),
                     static_cast<std::uint32_t>(spec.n_routed_experts)}};
  placing.redundant = options.redundant;
  spawn("/control/rebalancer", actors::make_rebalancer(placing), false);
  spawn("/control/scheduler", actors::make_scheduler({}), false);
  spawn("/control/journal", actors::make_journal({}), false);
  spawn("/gateway/0", actors::make_batch_gateway(std::move(front)), false);

  proto::view_committed view;
  view.view = epoch{1};
  for (std::uint32_t r = 0; r < options.ranks; ++r) {
    const incarnation life{1000 + r};
    view.members.push_back({rank_id{r}, {}, life, fmt::format("/rank/{}", r)});
    actors::rank_parts parts;
    parts.layout = engine::make_kv_layout(spec);
    parts.options.rank = rank_id{r};
    parts.options.life = life;
    parts.options.vocab = static_cast<std::uint32_t>(spec.vocab_size);
    parts.options.context_tokens = limits.context_tokens;
    parts.options.step_rows = options.step_rows;
    parts.options.kv_tokens = std::uint64_t{options.pages} * engine::page_tokens;
    parts.options.page_tokens = engine::page_tokens;
    parts.runner = engine::own_step_runner(m.model, options.threads);
    parts.samplers = engine::make_text_samplers(m.words.get(), limits.vocab, eos);
    parts.pool = engine::page_pool::create(parts.layout.page_bytes, options.pages).value();
    spawn(engine::rank_path(rank_id{r}), actors::make_rank(std::move(parts)), true);
    actors::shard_parts shard;
    shard.options.rank = rank_id{r};
    shard.options.life = life;
    shard.options.hidden = static_cast<std::uint32_t>(spec.hidden_size);
    shard.runner = engine::own_expert_runner(m.model, options.threads);
    spawn(engine::shard_path(rank_id{r}), actors::make_expert_shard(std::move(shard)), true);
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
  actors.stop_all(std::chrono::seconds{10});
  const std::lock_guard lock{guard};
  return outcome;
}

} // namespace di::testing
