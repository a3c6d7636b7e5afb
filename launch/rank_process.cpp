// SPDX-License-Identifier: Apache-2.0
// The rank process: model, RANK and EXPERT_SHARD, and its place in the cluster.
#include "actors/control.hpp"
#include "actors/directory.hpp"
#include "actors/serving_boot.hpp"
#include "actors/telemetry.hpp"
#include "engine/model/contract.hpp"
#include "engine/model/self_test.hpp"
#include "launch/child_context.hpp"
#include "launch/cluster.hpp"
#include "launch/memory_model.hpp"
#include "launch/plan.hpp"
#include "launch/segment_set.hpp"
#include "messaging/base/log.hpp"
#include "messaging/proto/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <unistd.h>

namespace di::launch {
namespace {

using namespace std::chrono_literals;

result<void> start(child_context& c, end_latch& latch) {
  const auto began = std::chrono::steady_clock::now();
  DI_TRY_VOID(c.open(false));
  DI_TRY(auto loaded, engine::loaded_model::load(c.config.model_path));
  const std::shared_ptr<const engine::loaded_model> weights{std::move(loaded)};
  DI_TRY(const auto outline,
         actors::read_model_outline(c.config.model_path, c.config.tokenizer_path));

  actors::rank_settings s;
  s.rank = rank_id{c.boot.index};
  s.life = c.boot.life;
  s.threads = c.boot.threads;
  s.kv_tokens = kv_room(weights->spec(), c.config).tokens;
  s.step_rows = c.config.step_rows;
  s.prefill_rows = c.config.prefill_rows;
  s.running_max = c.config.max_sequences;
  DI_TRY(s.steps.speculation, engine::parse_speculation(c.config.speculation));
  s.steps.steps_in_flight = c.config.steps_in_flight;
  DI_TRY(s.rebalance, rebalance_of(c.config));
  s.steps.step_ms = std::chrono::duration<double, std::milli>(c.config.step_time).count();
  s.steps.profile_ms = std::chrono::duration<double, std::milli>(c.config.profile).count();
  s.steps.snapshot_bytes = c.config.snapshot_bytes;
  s.kv_replicas = c.config.kv_replicas;
  s.kv_replica_bandwidth = c.config.kv_replica_bandwidth;
  s.kv_replica_room = c.config.kv_replica_room;
  s.ended = [&latch](const error& e) { latch.end(exit_gave_up, e.render()); };
  if (c.life) {
    s.rank_progress = &c.life->cells[0];
    s.shard_progress = &c.life->cells[1];
  }
  DI_TRY_VOID(actors::spawn_rank_serving(*c.system, weights, outline, s));

  actors::registrar_options r;
  r.process = actors::to_process(c.office->self());
  r.process.node = node_id{c.boot.node};
  r.process.role = "rank";
  r.process.rank = s.rank;
  r.process.contract_id = engine::contract_id(*weights);
  DI_TRY(r.process.proof, engine::self_test(weights, s.threads));
  r.office = c.office.get();
  r.join_within = c.config.start_timeout;
  r.installed = [](const proto::directory_snapshot&) {
    report_status({status_kind::ready, {}, {}});
  };
  actors::spawn_options ended;
  ended.ended = [&latch](const error& e) { latch.end(exit_gave_up, e.render()); };
  DI_TRY_VOID(c.system->spawn(c.prefix() + "/registrar", actors::make_registrar(std::move(r)),
                              std::move(ended)));
  actors::sampler_options m;
  m.source = c.prefix();
  m.life = c.boot.life;
  m.counters = &c.system->counters();
  DI_TRY_VOID(c.system->spawn(c.prefix() + "/sampler", actors::make_sampler(std::move(m))));
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - began);
  log::info("rank_loaded", {{"node", c.boot.node},
                            {"threads", c.boot.threads},
                            {"kv_tokens", s.kv_tokens},
                            {"load_ms", took.count()}});
  return {};
}

/// What the node process tells a rank.
void hear(child_context& c, const node_word& word, unique_fd descriptor) {
  switch (word.kind) {
  case node_word_kind::control_is: {
    envelope mail; // the registrar routes to it
    mail.to = c.prefix() + "/registrar";
    mail.from = c.prefix();
    mail.body = parcel::of(proto::control_moved{actors::to_process(word.peer)});
    if (const auto sent = c.office->post(std::move(mail)); !sent.ok())
      log::warn("control_moved_untold", {{"what", sent.error().what}});
    return;
  }
  case node_word_kind::segment:
    if (descriptor && shares_memory())
      c.office->add_neighbour(word.life, descriptor.release());
    return;
  case node_word_kind::reaped:
    return c.office->certify_death(word.life);
  default:
    return;
  }
}

} // namespace

int rank_process(child_context& c, end_latch& latch) {
  if (const auto started = start(c, latch); !started.ok()) {
    const int code = give_up(started.error());
    // Actors that started use the latch, which lives in the caller.
    if (c.system && !c.system->stop_all(200ms))
      ::_exit(code);
    return code;
  }
  const auto verdict = latch.wait(
      [] {}, // draining is control's work
      [&c](const node_word& word, unique_fd descriptor) { hear(c, word, std::move(descriptor)); });
  if (!verdict.why.empty()) {
    log::error("rank_failed", {{"what", verdict.why}});
    report_status({status_kind::failed, {}, verdict.why});
  }
  c.log_counters();
  // A step may be in the middle of its kernels; nobody waits for it any more.
  if (!c.system->stop_all(200ms))
    ::_exit(verdict.code);
  return verdict.code;
}

} // namespace di::launch
