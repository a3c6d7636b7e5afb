// SPDX-License-Identifier: Apache-2.0
// RANK's mail that its cores decide about.
#include "actors/rank.hpp"

#include "engine/core/expert_shard_core.hpp" // rank_path, shard_path

#include <algorithm>

namespace di::actors {

using engine::step_state;

rank_actor::rank_actor(rank_parts parts)
    : parts_{std::move(parts)},
      kv_{parts_.layout, *parts_.pool, parts_.rules, parts_.prefixes, parts_.transfer},
      core_{parts_.options, parts_.samplers, &kv_},
      calls_{parts_.options.rank,
             {parts_.options.life, parts_.ask_after, parts_.answer_bytes_max, parts_.load}} {
  for (const engine::sized_time& t : parts_.profile.steps)
    core_.profile_step(t.size, t.ms);
  for (const engine::sized_time& t : parts_.profile.drafts)
    core_.profile_draft(t.size, t.ms);
}

// --- mail that the core decides about

result<void> rank_actor::on(const proto::assign_request& m, instant now, outbox& out) {
  trace::mark(trace::kind::take, m.spec.request,
              {.rows = static_cast<std::uint32_t>(m.spec.prompt.size())});
  if (await_restore(m, out))
    return {};
  DI_TRY_VOID(core_.on(m, now, out));
  wake(out);
  return {};
}

result<void> rank_actor::on(const proto::withdraw_request& m, instant now, outbox& out) {
  if (const auto held = restoring_.find(m.request);
      held != restoring_.end() && held->second.attempt <= m.attempt)
    restoring_.erase(held);
  DI_TRY_VOID(core_.on(m, now, out));
  wake(out); // there may be room for another
  return {};
}

result<void> rank_actor::on(const proto::commit_accepted& m, instant now, outbox& out) {
  DI_TRY_VOID(core_.on(m, now, out));
  wake(out); // a paused sequence may go on
  return {};
}

result<void> rank_actor::on(const proto::commit_refused& m, instant now, outbox& out) {
  DI_TRY_VOID(core_.on(m, now, out));
  wake(out); // there may be room for another
  return {};
}

result<void> rank_actor::on(const proto::drain_rank& m, instant now, outbox& out) {
  return core_.on(m, now, out);
}

result<void> rank_actor::on_due(timer which, instant now, outbox& out) {
  if (which.kind == restore_due)
    return take_restored(request_id{which.key}, now, out);
  if (which.kind != ask_due)
    return core_.on_due(which, now, out);
  ask_armed_ = false;
  for (const engine::expert_call* call : calls_.take_late(now)) {
    out.count("di_rank_calls_late_total");
    out.send(engine::shard_path(call->holder.rank),
             proto::ask_call{call->id, parts_.options.rank, parts_.options.life});
  }
  for (const call_id reader : readers_)
    out.send(engine::shard_path(parts_.options.rank),
             proto::ask_call{reader, parts_.options.rank, parts_.options.life});
  if (!calls_.complete() || !readers_.empty()) {
    out.arm({ask_due, 0}, parts_.ask_after);
    ask_armed_ = true;
  }
  return {};
}

result<void> rank_actor::on(const proto::placement_published& m, instant, outbox& out) {
  DI_TRY(engine::placement made, engine::placement::from(m));
  auto next = std::make_shared<const engine::placement>(std::move(made));
  const engine::placement* old = calls_.current();
  if (!old || old->version() < next->version()) {
    std::vector<engine::placed_rank> alive;
    for (std::size_t i = 0; i < next->ranks(); ++i)
      alive.push_back(next->rank_at(i));
    const engine::placed_rank self{parts_.options.rank, parts_.options.life};
    joined_ = joined_ || std::find(alive.begin(), alive.end(), self) != alive.end();
    core_.install_view(next->view(), out);
    calls_.install(std::move(next));
    lose_others(alive, out);
  }
  owes_installed_ = true;
  tell_installed(out);
  wake(out);
  return {};
}

/// Calls to whoever is not named are asked again of others.
void rank_actor::lose_others(std::span<const engine::placed_rank> alive, outbox& out) {
  calls_.keep_only(alive);
  send_calls(out);
  if (speeds_.keep_only(alive))
    core_.set_slow(speeds_.slow(), out);
}

result<void> rank_actor::on(const proto::view_committed& m, instant, outbox& out) {
  if (m.view < core_.view())
    return {};
  std::vector<engine::placed_rank> alive;
  for (const proto::view_member& member : m.members)
    alive.push_back({member.rank, member.life});
  const engine::placed_rank self{parts_.options.rank, parts_.options.life};
  if (std::find(alive.begin(), alive.end(), self) == alive.end()) {
    if (joined_)
      out.fail({ec::stale_incarnation,
                fmt::format("view {} is without rank {}", m.view.v, parts_.options.rank.v)});
    return {};
  }
  joined_ = true;
  offer_to(alive);
  core_.install_view(m.view, out);
  lose_others(alive, out);
  tell_installed(out);
  wake(out);
  return {};
}

/// Says that a placement is followed once no call made under an older one is open: then shards may
/// let go of what only that one gave them.
void rank_actor::tell_installed(outbox& out) {
  if (!owes_installed_ || calls_.settled() < calls_.current()->version())
    return;
  owes_installed_ = false;
  out.send("/control/rebalancer",
           proto::placement_installed{engine::rank_path(parts_.options.rank),
                                      calls_.current()->version(), parts_.options.life});
}

result<proto::rank_state> rank_actor::on(const proto::get_rank&) const {
  proto::rank_state s;
  s.rank = parts_.options.rank;
  s.life = parts_.options.life;
  s.view = core_.view();
  s.placement = calls_.current() ? calls_.current()->version() : epoch{};
  s.steps = core_.steps();
  s.rows = core_.rows();
  s.running = core_.running();
  s.waiting = core_.waiting();
  s.unacknowledged = core_.unacknowledged();
  s.calls_open = static_cast<std::uint32_t>(calls_.open());
  s.phase = phase_ == phase::idle ? "idle" : phase_ == phase::drafts ? "drafts" : "experts";
  describe(core_.tuning(), parts_.options.draft_block, s);
  return s;
}

void rank_actor::check() const {
  core_.check();
  calls_.check();
  kv_.check();
  DI_CHECK((phase_ == phase::experts) == core_.step_out());
}

} // namespace di::actors
