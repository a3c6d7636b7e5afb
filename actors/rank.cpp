// SPDX-License-Identifier: Apache-2.0
// RANK's step loop: joins rank_core, expert_call_core, the step runner and KV.
#include "actors/rank.hpp"

#include "engine/core/expert_shard_core.hpp" // rank_path, shard_path

#include <cstring>

namespace di::actors {

using engine::step_state;

rank_actor::rank_actor(rank_parts parts)
    : parts_{std::move(parts)},
      kv_{parts_.layout, *parts_.pool},
      core_{parts_.options, parts_.samplers, &kv_},
      calls_{parts_.options.rank,
             {parts_.options.life, parts_.ask_after, parts_.answer_bytes_max, parts_.load}} {
}

// --- mail that the core decides about

result<void> rank_actor::on(const proto::assign_request& m, instant now, outbox& out) {
  DI_TRY_VOID(core_.on(m, now, out));
  wake(out);
  return {};
}

result<void> rank_actor::on(const proto::withdraw_request& m, instant now, outbox& out) {
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
    std::vector<engine::placed_rank> gone;
    for (std::size_t i = 0; old && i < old->ranks(); ++i) {
      const auto at = next->index_of(old->rank_at(i).rank);
      if (!at || next->rank_at(*at).life != old->rank_at(i).life)
        gone.push_back(old->rank_at(i));
    }
    core_.install_view(next->view(), out);
    calls_.install(std::move(next));
    for (const engine::placed_rank& r : gone)
      calls_.lost(r.rank, r.life);
    send_calls(out);
  }
  owes_installed_ = true;
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
  s.phase = phase_ == phase::idle ? "idle" : "experts";
  return s;
}

// --- the step loop

/// Work goes behind the mail that is waiting already, so that a step takes all that has come.
void rank_actor::wake(outbox& out) {
  if (phase_ == phase::idle && readers_.empty() && calls_.current() && core_.has_work())
    send_work(out);
}

void rank_actor::send_work(outbox& out) {
  if (!std::exchange(work_sent_, true))
    out.send(engine::rank_path(parts_.options.rank), proto::work_due{core_.steps()});
}

result<void> rank_actor::on(const proto::work_due&, instant now, outbox& out) {
  work_sent_ = false;
  if (phase_ == phase::experts)
    overlap(now, out);
  else if (readers_.empty() && calls_.current())
    begin_step(now, out);
  return {};
}

void rank_actor::begin_step(instant now, outbox& out) {
  if (auto state = launch(now, out))
    go_on(std::move(*state), out);
}

/// Launches the next step. Nothing if there is none to compute.
std::optional<result<step_state>> rank_actor::launch(instant now, outbox& out) {
  if (core_.launch(now, out).segments.empty())
    return std::nullopt;
  step_began_ = now;
  waited_ = false;
  device_ns_ = local_rows_ = remote_rows_ = 0;
  return timed([this] { return start_step(); });
}

/// What needs no answer, once the calls of the layer are on their way.
void rank_actor::overlap(instant now, outbox& out) {
  settle(now, out);
  if (auto done = parts_.runner->work_while_waiting(); !done)
    return fail_step(done.error(), out);
  if (parts_.options.steps_in_flight > 1 && !core_.planned())
    core_.plan(now);
}

template <class F>
result<step_state> rank_actor::timed(F&& compute) {
  const instant before = real_env().now();
  auto state = compute();
  device_ns_ += static_cast<std::uint64_t>((real_env().now() - before).count());
  return state;
}

result<step_state> rank_actor::start_step() {
  std::vector<engine::step_segment> segments;
  for (const engine::planned_segment& planned : core_.launched().segments)
    segments.push_back({&kv_.state(planned.sequence), planned.first_position, planned.tokens,
                        !planned.draws       ? engine::logits_wanted::none
                        : planned.drafts > 0 ? engine::logits_wanted::all
                                             : engine::logits_wanted::last});
  return parts_.runner->start(segments);
}

/// Goes on until experts are missing or there is nothing to compute.
void rank_actor::go_on(result<step_state> state, outbox& out) {
  for (;;) {
    while (state && *state == step_state::needs_experts) {
      phase_ = phase::experts;
      auto complete = ask_experts(out);
      if (!complete)
        return fail_step(complete.error(), out);
      if (!*complete) {
        waited_ = true;
        return send_work(out);
      }
      state = timed([this] { return parts_.runner->resume(); });
    }
    if (!state)
      return fail_step(state.error(), out);
    const instant now = real_env().now();
    settle(now, out); // if it had no time before
    draw(now);
    // A step that never waited read no mail: the next one goes behind what has come.
    std::optional<result<step_state>> next;
    if (parts_.options.steps_in_flight > 1 && waited_)
      next = launch(now, out);
    if (!next) {
      settle(now, out);
      return wake(out);
    }
    state = std::move(*next);
  }
}

/// Begins the calls of a layer. @return true if there is nothing to wait for
result<bool> rank_actor::ask_experts(outbox& out) {
  const engine::expert_demand& d = parts_.runner->demand();
  DI_TRY_VOID(calls_.begin({d.layer, d.rows, d.experts_per_token, d.experts, d.hidden}));
  send_calls(out);
  return calls_.complete();
}

void rank_actor::send_calls(outbox& out) {
  for (const engine::expert_call* call : calls_.take_unsent(real_env().now())) {
    (call->local ? local_rows_ : remote_rows_) += call->entries.size();
    out.send(engine::shard_path(call->holder.rank), batch_of(*call));
  }
  if (!calls_.complete() && !ask_armed_) {
    out.arm({ask_due, 0}, parts_.ask_after);
    ask_armed_ = true;
  }
}

proto::expert_batch rank_actor::batch_of(const engine::expert_call& call) const {
  const engine::expert_demand& d = parts_.runner->demand();
  proto::expert_batch m;
  m.call = call.id;
  m.caller = parts_.options.rank;
  m.life = parts_.options.life;
  m.placement = call.placement;
  m.layer = call.layer;
  m.decoding = core_.launched().prefill_rows == 0;
  m.hidden = d.hidden;
  m.row.reserve(call.entries.size());
  m.expert.reserve(call.entries.size());
  m.weight.reserve(call.entries.size());
  const std::size_t groups = d.hidden / 32;
  if (call.local) {
    // The own shard reads the runner's rows where they lie: they stay until the layer is complete.
    m.rows = d.rows;
    m.codes = {parts_.runner, d.codes.data(), d.codes.size()};
    m.scales = {parts_.runner, d.scales.data(), d.scales.size()};
  } else {
    std::vector<std::uint8_t> codes(call.rows.size() * d.hidden);
    std::vector<std::uint8_t> scales(call.rows.size() * groups);
    for (std::size_t i = 0; i < call.rows.size(); ++i) {
      std::memcpy(&codes[i * d.hidden], &d.codes[call.rows[i] * std::size_t{d.hidden}], d.hidden);
      std::memcpy(&scales[i * groups], &d.scales[call.rows[i] * groups], groups);
    }
    m.rows = static_cast<std::uint32_t>(call.rows.size());
    m.codes = shared_bytes::adopt(std::move(codes));
    m.scales = shared_bytes::adopt(std::move(scales));
  }
  std::uint32_t shipped = 0; // entries and rows both ascend
  for (const engine::call_entry& e : call.entries) {
    while (call.rows[shipped] != e.row)
      ++shipped;
    m.row.push_back(call.local ? e.row : shipped);
    m.expert.push_back(e.expert);
    m.weight.push_back(d.weights[e.slot]);
  }
  return m;
}

/// The own shard has answered, or does not have the call: it reads the failed step's rows no more.
void rank_actor::reader_done(call_id call, outbox& out) {
  if (readers_.erase(call) == 1)
    wake(out);
}

result<void> rank_actor::on(const proto::expert_rows& m, instant, outbox& out) {
  reader_done(m.call, out);
  if (phase_ != phase::experts)
    return {};
  const engine::expert_demand& d = parts_.runner->demand();
  const std::size_t row_bytes = std::size_t{d.hidden} * sizeof(engine::bf16);
  if (m.rows.size() % row_bytes != 0) {
    out.count("di_rank_answers_malformed_total");
    return {};
  }
  const auto call = calls_.answered(m.call, m.rows.size() / row_bytes);
  if (!call) {
    out.count("di_rank_answers_late_total");
    return {};
  }
  for (std::size_t i = 0; i < call->entries.size(); ++i)
    std::memcpy(&d.answers[call->entries[i].slot * std::size_t{d.hidden}],
                m.rows.data() + i * row_bytes, row_bytes);
  tell_installed(out);
  resume_if_complete(out);
  return {};
}

void rank_actor::resume_if_complete(outbox& out) {
  if (phase_ == phase::experts && calls_.complete())
    go_on(timed([this] { return parts_.runner->resume(); }), out);
}

result<void> rank_actor::on(const proto::expert_moved& m, instant, outbox& out) {
  reader_done(m.call, out);
  out.count("di_rank_calls_moved_total");
  calls_.moved(m);
  tell_installed(out);
  send_calls(out);
  return {};
}

result<void> rank_actor::on(const proto::expert_failed& m, instant, outbox& out) {
  reader_done(m.call, out);
  // A shard that is full is asked again by the timer; anything else would fail again.
  if (phase_ != phase::experts || m.code == ec::unavailable || !calls_.is_open(m.call))
    return {};
  calls_.close(m.call);
  fail_step({m.code, fmt::format("rank {}: {}", m.holder.v, m.what)}, out);
  return {};
}

result<void> rank_actor::on(const proto::call_known& m, instant, outbox& out) {
  if (!m.queued) {
    reader_done(m.call, out);
    calls_.forgotten(m.call);
    send_calls(out);
  }
  return {};
}

/// Tokens of the computed step: all that the next launch must know.
void rank_actor::draw(instant now) {
  phase_ = phase::idle;
  const engine::step_plan& plan = core_.launched();
  std::vector<std::span<const float>> logits;
  for (std::size_t i = 0; i < plan.segments.size(); ++i)
    logits.push_back(plan.segments[i].draws ? parts_.runner->logits(i) : std::span<const float>{});
  drawn_ = {};
  drawn_.step = plan.step;
  drawn_.rank = parts_.options.rank;
  drawn_.rows = plan.rows;
  drawn_.prefill_rows = plan.prefill_rows;
  drawn_.device_time = proto::micros{device_ns_ / 1000};
  drawn_.local_rows = local_rows_;
  drawn_.remote_rows = remote_rows_;
  core_.draw(logits, now);
  load_ = calls_.end_step();
  drawn_.wall_time = proto::micros{static_cast<std::uint64_t>((now - step_began_).count() / 1000)};
}

/// End checks, commits and reports of the drawn step, if that is still to be done.
void rank_actor::settle(instant now, outbox& out) {
  if (drawn_.step == epoch{})
    return;
  proto::step_finished done = std::exchange(drawn_, {});
  done.tokens = core_.finish(now, out);
  if (load_)
    out.send("/control/rebalancer", *std::exchange(load_, std::nullopt));
  if (!parts_.listeners.empty())
    out.send(parts_.listeners, std::move(done));
}

void rank_actor::fail_step(const error& why, outbox& out) {
  const instant now = real_env().now();
  settle(now, out);
  phase_ = phase::idle;
  readers_ = calls_.local_open();
  calls_.abandon();
  tell_installed(out);
  if (!readers_.empty() && !ask_armed_) {
    out.arm({ask_due, 0}, parts_.ask_after);
    ask_armed_ = true;
  }
  core_.fail_step(why, now, out);
  if (!parts_.listeners.empty()) {
    proto::step_finished failed;
    failed.step = core_.launched().step;
    failed.rank = parts_.options.rank;
    failed.outcome = why.code;
    out.send(parts_.listeners, std::move(failed));
  }
  wake(out);
}

void rank_actor::check() const {
  core_.check();
  calls_.check();
  kv_.check();
  DI_CHECK((phase_ == phase::experts) == core_.step_out());
}

} // namespace di::actors
