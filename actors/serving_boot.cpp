// SPDX-License-Identifier: Apache-2.0
// From settings to spawned actors.
#include "actors/serving_boot.hpp"

#include "actors/expert_shard.hpp"
#include "actors/kv_agent.hpp"
#include "actors/rank.hpp"
#include "actors/serving.hpp"
#include "engine/core/speculation_choice.hpp"
#include "engine/core/text_sampler.hpp"
#include "engine/model/checkpoint.hpp"
#include "engine/model/contract.hpp"
#include "engine/model/runners.hpp"
#include "messaging/base/log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace di::actors {

namespace {

constexpr std::uint64_t kv_tokens_default_max = 512 * 1024;

std::vector<engine::expert_layers> expert_groups(const engine::model_spec& spec) {
  std::vector<engine::expert_layers> groups;
  if (spec.n_routed_experts > 0)
    groups.push_back({0, static_cast<std::uint32_t>(spec.num_hidden_layers),
                      static_cast<std::uint32_t>(spec.n_routed_experts)});
  if (spec.draft_layers() > 0 && spec.dspark_n_routed_experts > 0)
    groups.push_back({static_cast<std::uint32_t>(spec.num_hidden_layers),
                      static_cast<std::uint32_t>(spec.draft_layers()),
                      static_cast<std::uint32_t>(spec.dspark_n_routed_experts)});
  return groups;
}

/// What steps cost, measured before anybody asks for one; nothing if that fails or is not wanted.
engine::step_profile profile(const engine::step_settings& settings, const rank_parts& parts,
                             engine::expert_runner& experts) {
  const engine::rank_options& o = parts.options;
  if (settings.speculation.mode != engine::speculation_mode::varlen || !parts.drafts)
    return {};
  engine::profile_options p;
  p.budget = duration{static_cast<std::int64_t>(settings.profile_ms * 1e6)};
  p.sequences_max = std::min(o.running_max, o.step_rows);
  p.rows_max = static_cast<std::uint32_t>(
      std::min({std::uint64_t{o.step_rows}, std::uint64_t{o.running_max} * (1 + o.draft_block),
                o.kv_tokens, std::uint64_t{o.context_tokens}}));
  p.vocab = static_cast<token_id>(o.vocab);
  auto measured = engine::profile_steps(p, *parts.runner, parts.drafts.get(), experts, parts.layout,
                                        *parts.pool, real_env());
  if (measured)
    return std::move(*measured);
  log::warn("profile_failed", {{"rank", o.rank.v}, {"reason", measured.error().render()}});
  return {};
}

} // namespace

result<model_outline> read_model_outline(const std::filesystem::path& folder,
                                         const std::filesystem::path& tokenizer) {
  const std::filesystem::path config = folder / "config.json";
  std::ifstream file{config, std::ios::binary};
  if (!file)
    return fail(ec::io_error, "{}: cannot be opened: {}", config.string(), std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  model_outline m;
  DI_TRY(m.spec, engine::parse_model_spec(text.str(), config.string()));
  m.eos_ids = {m.spec.eos_token_id};
  const std::filesystem::path words = tokenizer.empty() ? folder / "tokenizer.json" : tokenizer;
  if (!tokenizer.empty() || std::filesystem::exists(words)) {
    DI_TRY(auto loaded, engine::tokenizer::load(words));
    m.words = std::make_shared<const engine::tokenizer>(std::move(loaded));
  }
  return m;
}

result<void> spawn_control_serving(system& actors, const model_outline& model,
                                   const control_settings& settings) {
  engine::rebalancer_options placing;
  placing.groups = expert_groups(model.spec);
  placing.redundant = settings.redundant_experts;
  placing.ranks_min = settings.ranks_min;
  placing.policy = settings.rebalance;
  placing.listeners = {"/control/scheduler"};
  placing.listeners.insert(placing.listeners.end(), settings.gateways.begin(),
                           settings.gateways.end());
  placing.listeners.emplace_back("/control/chronicle");
  spawn_options watched;
  watched.ended = settings.ended;
  engine::scheduler_options scheduling = settings.scheduler;
  scheduling.slow_to = {"/control/rebalancer", "/control/chronicle"};
  DI_TRY_VOID(actors.spawn("/control/scheduler", make_scheduler(std::move(scheduling)), watched));
  DI_TRY_VOID(actors.spawn("/control/journal", make_journal(settings.journal), watched));
  return actors.spawn("/control/rebalancer", make_rebalancer(std::move(placing)), watched);
}

result<void> spawn_batch_gateway(system& actors, const model_outline& model,
                                 batch_settings settings) {
  if (!settings.draw_seed)
    settings.draw_seed = [] { return real_env().random(); };
  batch_parts parts;
  engine::batch_limits limits = model.limits();
  limits.defaults = settings.defaults;
  parts.work = engine::read_batch(settings.prompts, limits, settings.path, settings.draw_seed);
  parts.words = model.words;
  parts.eos_ids = model.eos_ids;
  parts.options.window = settings.window;
  parts.options.keep = settings.keep;
  parts.options.ask_again_for = std::chrono::minutes{5};
  parts.options.tell_delivered = settings.tell_delivered;
  parts.resumable = settings.resumable;
  parts.lines_written = settings.lines_written;
  parts.lines_failed = settings.lines_failed;
  parts.options.submit = parts.work.submit;
  parts.write = std::move(settings.write);
  parts.show = std::move(settings.show);
  parts.show_every = settings.show_every;
  parts.finished = std::move(settings.finished);
  parts.broke_off = std::move(settings.broke_off);
  if (settings.read)
    settings.read(parts.work);
  spawn_options watched;
  watched.detached = true; // it waits for whoever reads its lines
  watched.ended = std::move(settings.ended);
  return actors.spawn(settings.path, make_batch_gateway(std::move(parts)), std::move(watched));
}

result<void> spawn_rank_serving(system& actors, std::shared_ptr<const engine::loaded_model> weights,
                                const model_outline& model, const rank_settings& settings) {
  const engine::model_spec& spec = model.spec;
  rank_parts parts;
  parts.layout = engine::make_kv_layout(spec);
  parts.listeners = settings.listeners;
  if (settings.rebalance.mode != engine::rebalance_mode::off)
    parts.load = {settings.rebalance.window_steps, settings.rebalance.bins};
  engine::rank_options& o = parts.options;
  o.rank = settings.rank;
  o.life = settings.life;
  o.vocab = static_cast<std::uint32_t>(spec.vocab_size);
  o.context_tokens = static_cast<std::uint32_t>(spec.max_position_embeddings);
  o.step_rows = settings.step_rows;
  o.prefill_rows_max = settings.prefill_rows;
  o.running_max = settings.running_max;
  o.steps_in_flight = settings.steps.steps_in_flight;
  o.page_tokens = static_cast<std::uint32_t>(engine::page_tokens);
  const std::uint64_t wanted =
      settings.kv_tokens > 0 ? settings.kv_tokens
                             : std::min(std::uint64_t{8} * o.context_tokens, kv_tokens_default_max);
  const std::uint64_t pages =
      std::max<std::uint64_t>(1, (wanted + o.page_tokens - 1) / o.page_tokens);
  o.kv_tokens = pages * o.page_tokens;
  DI_TRY(parts.pool, engine::page_pool::create(std::max<std::size_t>(1, parts.layout.page_bytes),
                                               static_cast<std::uint32_t>(pages)));
  parts.samplers = engine::make_text_samplers(
      model.words.get(), static_cast<std::size_t>(spec.vocab_size), model.eos_ids);
  // Samplers point into the tokenizer: it lives as long as they do.
  parts.samplers = [words = model.words, make = std::move(parts.samplers)](
                       const proto::request_spec& request, std::uint32_t choice) {
    return make(request, choice);
  };
  engine::rank_runners runners = engine::own_rank_runners(weights, settings.threads);
  parts.runner = std::move(runners.steps);
  parts.drafts = std::move(runners.drafts);
  parts.taps_width = static_cast<std::size_t>(spec.taps_width());
  if (parts.drafts)
    o.draft_block = static_cast<std::uint32_t>( // of a longer block the rest is never verified
        std::min<std::int64_t>(parts.drafts->block(), engine::drafts_max));
  o.speculation = settings.steps.speculation;
  parts.rules = engine::make_prefill_rules(spec);
  parts.prefixes.contract = engine::contract_id(*weights);
  parts.prefixes.page_tokens = engine::page_tokens;
  parts.prefixes.snapshot_bytes = settings.steps.snapshot_bytes;
  o.step_ms = settings.steps.step_ms;

  shard_parts shard;
  shard.options.rank = settings.rank;
  shard.options.life = settings.life;
  shard.options.hidden = static_cast<std::uint32_t>(spec.hidden_size);
  shard.runner = engine::own_expert_runner(weights, settings.threads);
  shard.loader = engine::own_expert_loader(weights);
  parts.profile = profile(settings.steps, parts, *shard.runner);

  engine::kv_agent_options keeping;
  keeping.rank = settings.rank;
  keeping.life = settings.life;
  keeping.replicas = settings.kv_replicas;
  if (settings.kv_replica_bandwidth > 0)
    keeping.bandwidth = settings.kv_replica_bandwidth;
  if (settings.kv_replica_room > 0)
    keeping.held_bytes = settings.kv_replica_room;
  if (settings.kv_replicas > 0) {
    o.kv_agent = engine::kv_agent_path(settings.rank);
    parts.transfer.enabled = true;
  }
  spawn_options watched;
  watched.ended = settings.ended;
  DI_TRY_VOID(actors.spawn(engine::kv_agent_path(settings.rank), make_kv_agent(keeping), watched));

  spawn_options alone;
  alone.detached = true;
  alone.ended = settings.ended;
  alone.progress = settings.shard_progress;
  DI_TRY_VOID(
      actors.spawn(engine::shard_path(settings.rank), make_expert_shard(std::move(shard)), alone));
  alone.progress = settings.rank_progress;
  return actors.spawn(engine::rank_path(settings.rank), make_rank(std::move(parts)), alone);
}

} // namespace di::actors
