// SPDX-License-Identifier: Apache-2.0
// EXPERT_SHARD's loop: slices in, grouped GEMMs, answers out.
#include "actors/expert_shard.hpp"

#include "messaging/base/hang_point.hpp"
#include "messaging/base/trace.hpp"

namespace di::actors {

expert_shard_actor::expert_shard_actor(shard_parts parts)
    : parts_{std::move(parts)}, core_{parts_.options} {
}

void expert_shard_actor::wake(outbox& out) {
  if (work_sent_ || (!core_.has_work() && !core_.next_load()))
    return;
  work_sent_ = true;
  out.send(engine::shard_path(parts_.options.rank), proto::work_due{++turn_});
}

result<void> expert_shard_actor::on(const proto::expert_batch& m, instant now, outbox& out) {
  DI_TRY_VOID(core_.on(m, now, out));
  wake(out);
  return {};
}

result<void> expert_shard_actor::on(const proto::ask_call& m, instant now, outbox& out) {
  return core_.on(m, now, out);
}

result<void> expert_shard_actor::on(const proto::placement_proposed& m, instant, outbox& out) {
  DI_TRY(engine::placement made, engine::placement::from(m.next));
  core_.propose(std::make_shared<const engine::placement>(std::move(made)), out);
  if (parts_.loader)
    for (const engine::layer_expert& e : core_.slots().loads())
      parts_.loader->announce(e.layer, expert_id{e.expert});
  wake(out);
  return {};
}

result<void> expert_shard_actor::on(const proto::placement_settled& m, instant, outbox& out) {
  core_.retire(m.placement);
  release(out);
  return {};
}

result<void> expert_shard_actor::on(const proto::view_committed& m, instant, outbox& out) {
  if (!core_.install_view(m))
    out.fail({ec::stale_incarnation,
              fmt::format("view {} is without rank {}", m.view.v, parts_.options.rank.v)});
  return {};
}

/// The system begins to read what this placement gives the shard, unless it is here already.
void expert_shard_actor::announce(const engine::placement& next) {
  const auto self = next.index_of(parts_.options.rank);
  if (!self || !parts_.loader || next.version() <= core_.version())
    return;
  for (const proto::placement_group& g : next.published().groups)
    for (std::uint32_t i = 0; i < g.layers; ++i) {
      const layer_id layer{g.first_layer + i};
      for (const std::uint32_t e : next.held(*self, layer))
        if (e != engine::placement::empty_slot && !core_.slots().has(layer, e))
          parts_.loader->announce(layer, expert_id{e});
    }
}

result<void> expert_shard_actor::on(const proto::placement_published& m, instant now, outbox& out) {
  DI_TRY(engine::placement made, engine::placement::from(m));
  const auto next = std::make_shared<const engine::placement>(std::move(made));
  if (core_.version() != epoch{}) // at first nothing is near, and all of it is wanted
    announce(*next);
  core_.install(next);
  core_.take_held(now, out);
  wake(out);
  out.send("/control/rebalancer",
           proto::placement_installed{engine::shard_path(parts_.options.rank), core_.version(),
                                      parts_.options.life});
  return {};
}

result<void> expert_shard_actor::on(const proto::work_due&, instant, outbox& out) {
  work_sent_ = false;
  if (core_.next_load() && (!core_.has_work() || ++slices_since_load_ > slices_per_load))
    load(out);
  if (core_.has_work())
    compute(out);
  release(out);
  wake(out);
  return {};
}

/// One part of an expert that a proposed placement brings.
void expert_shard_actor::load(outbox& out) {
  slices_since_load_ = 0;
  const engine::layer_expert e = *core_.next_load();
  if (loading_ != e) {
    loading_ = e;
    load_done_ = 0;
  }
  const std::size_t bytes = parts_.loader ? parts_.loader->touch(e.layer, expert_id{e.expert},
                                                                 load_done_, parts_.load_bytes)
                                          : 0;
  load_done_ += bytes;
  if (bytes > 0)
    return;
  loading_.reset();
  core_.loaded(out);
}

void expert_shard_actor::release(outbox& out) {
  for (const engine::layer_expert& e : core_.take_released()) {
    out.count("di_expert_shard_slots_released_total");
    if (parts_.loader)
      parts_.loader->release(e.layer, expert_id{e.expert});
  }
}

void expert_shard_actor::compute(outbox& out) {
  hang_point("shard.stuck", hang_kind::blocks);
  const engine::expert_slice& slice = core_.next_slice();
  const trace::span computing{trace::kind::experts,
                              {.rows = static_cast<std::uint32_t>(slice.entries.size()),
                               .layer = static_cast<std::int32_t>(slice.layer.v)}};
  std::size_t used = 0;
  for (const engine::slice_entry& e : slice.entries) { // by ascending expert
    const proto::expert_batch& m = e.call->batch;
    const expert_id expert{m.expert[e.entry]};
    if (used == 0 || jobs_[used - 1].expert != expert) {
      if (used == jobs_.size())
        jobs_.emplace_back();
      engine::expert_job& fresh = jobs_[used++];
      fresh.layer = slice.layer;
      fresh.expert = expert;
      fresh.codes.clear();
      fresh.scales.clear();
      fresh.weights.clear();
      fresh.out.clear();
    }
    engine::expert_job& job = jobs_[used - 1];
    const std::size_t row = m.row[e.entry];
    job.codes.push_back(m.codes.as<std::uint8_t>().data() + row * m.hidden);
    job.scales.push_back(m.scales.as<std::uint8_t>().data() + row * (m.hidden / 32));
    job.weights.push_back(m.weight[e.entry]);
    job.out.push_back(e.call->rows.data() + std::size_t{e.entry} * m.hidden);
  }
  if (const auto done = parts_.runner->run(std::span{jobs_}.first(used)); done)
    core_.finish_slice(out);
  else
    core_.fail_slice(done.error(), out);
}

result<proto::shard_state> expert_shard_actor::on(const proto::get_shard&) const {
  return core_.state();
}

} // namespace di::actors
