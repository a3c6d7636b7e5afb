// SPDX-License-Identifier: Apache-2.0
// RANK's expert calls: demands of a runner out, answers back into it.
#include "actors/rank.hpp"
#include "engine/core/expert_shard_core.hpp" // rank_path, shard_path

#include <cstring>

namespace di::actors {

using engine::step_state;

/// Begins the calls of a layer. @return true if there is nothing to wait for
result<bool> rank_actor::ask_experts(outbox& out) {
  const engine::expert_demand& d = demand();
  const trace::numbers about{.rows = d.rows, .layer = static_cast<std::int32_t>(d.layer.v)};
  const trace::span asking{trace::kind::dispatch, about};
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
  const engine::expert_demand& d = demand();
  proto::expert_batch m;
  m.call = call.id;
  m.caller = parts_.options.rank;
  m.life = parts_.options.life;
  m.placement = call.placement;
  m.layer = call.layer;
  m.decoding = phase_ == phase::drafts || core_.launched().prefill_rows == 0;
  m.hidden = d.hidden;
  m.row.reserve(call.entries.size());
  m.expert.reserve(call.entries.size());
  m.weight.reserve(call.entries.size());
  const std::size_t groups = d.hidden / 32;
  if (call.local) {
    // The own shard reads the runner's rows where they lie: they stay until the layer is complete.
    m.rows = d.rows;
    const std::shared_ptr<const void> owner =
        phase_ == phase::drafts ? std::shared_ptr<const void>{parts_.drafts} : parts_.runner;
    m.codes = {owner, d.codes.data(), d.codes.size()};
    m.scales = {owner, d.scales.data(), d.scales.size()};
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

result<void> rank_actor::on(const proto::expert_rows& m, instant now, outbox& out) {
  reader_done(m.call, out);
  if (phase_ == phase::idle)
    return {};
  const engine::expert_demand& d = demand();
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
  if (!call->local && speeds_.observe(call->holder, now - call->first_sent))
    core_.set_slow(speeds_.slow(), out);
  for (std::size_t i = 0; i < call->entries.size(); ++i)
    std::memcpy(&d.answers[call->entries[i].slot * std::size_t{d.hidden}],
                m.rows.data() + i * row_bytes, row_bytes);
  tell_installed(out);
  resume_if_complete(out);
  return {};
}

void rank_actor::resume_if_complete(outbox& out) {
  if (phase_ != phase::idle && calls_.complete()) {
    wait_watch_.stop(trace::kind::wait,
                     {.rows = demand().rows, .layer = static_cast<std::int32_t>(demand().layer.v)});
    go_on(resume(), out);
  }
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
  if (phase_ == phase::idle || m.code == ec::unavailable || !calls_.is_open(m.call))
    return {};
  calls_.close(m.call);
  give_up({m.code, fmt::format("rank {}: {}", m.holder.v, m.what)}, out);
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

} // namespace di::actors
