// SPDX-License-Identifier: Apache-2.0
// Queueing, slicing and answering expert calls.
#include "engine/core/expert_shard_core.hpp"

#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace di::engine {

address rank_path(rank_id rank) {
  return fmt::format("/rank/{}/rank", rank.v);
}

address shard_path(rank_id rank) {
  return fmt::format("/rank/{}/expert_shard", rank.v);
}

void expert_shard_core::install(std::shared_ptr<const placement> p) {
  slots_.install(std::move(p));
}

void expert_shard_core::take_held(instant now, outbox& out) {
  for (const proto::expert_batch& m : std::exchange(held_, {}))
    static_cast<void>(on(m, now, out)); // held again, if it is for a still newer one
}

bool expert_shard_core::install_view(const proto::view_committed& m) {
  if (m.view <= view_)
    return true;
  DI_CHECK(slice_.entries.empty());
  view_ = m.view;
  std::vector<placed_rank> members;
  for (const proto::view_member& member : m.members)
    members.push_back({member.rank, member.life});
  const auto is_in = [](const std::vector<placed_rank>& view, const placed_rank& who) {
    return std::find(view.begin(), view.end(), who) != view.end();
  };
  const auto left = [&](const proto::expert_batch& call) {
    const placed_rank caller{call.caller, call.life};
    return is_in(members_, caller) && !is_in(members, caller);
  };
  for (lane* l : {&decode_, &prefill_})
    std::erase_if(*l, [&](const auto& call) { return left(call->batch); });
  std::erase_if(held_, left);
  const placed_rank self{options_.rank, options_.life};
  const bool expelled = is_in(members_, self) && !is_in(members, self);
  members_ = std::move(members);
  return !expelled;
}

void expert_shard_core::propose(std::shared_ptr<const placement> p, outbox& out) {
  slots_.propose(std::move(p));
  tell_prepared(out);
}

void expert_shard_core::retire(epoch settled) {
  slots_.retire(settled);
}

void expert_shard_core::loaded(outbox& out) {
  slots_.loaded();
  out.count("di_expert_shard_slots_loaded_total");
  tell_prepared(out);
}

void expert_shard_core::tell_prepared(outbox& out) {
  if (const auto done = slots_.take_prepared())
    out.send("/control/rebalancer",
             proto::placement_prepared{options_.rank, options_.life, done->version, done->loaded});
}

bool expert_shard_core::is_open(const layer_expert& e) const {
  for (const lane* l : {&decode_, &prefill_})
    for (const auto& call : *l)
      if (call->batch.layer == e.layer
          && std::find(call->batch.expert.begin(), call->batch.expert.end(), e.expert)
                 != call->batch.expert.end()) {
        reached("shard.keeps_open_expert");
        return true;
      }
  return false;
}

std::vector<layer_expert> expert_shard_core::take_released() {
  return slots_.take_released(
      [this](const layer_expert& e) { return is_open(e) && !planted("releases_what_is_asked"); });
}

result<void> expert_shard_core::admissible(const proto::expert_batch& m) const {
  const std::size_t entries = m.row.size();
  if (m.hidden != options_.hidden || m.hidden % 32 != 0)
    return fail(ec::bad_shape, "rows of width {}, expected {}", m.hidden, options_.hidden);
  if (entries == 0 || entries > options_.entries_max || m.rows > options_.entries_max)
    return fail(ec::limit_exceeded, "{} entries over {} rows, allowed are 1..{}", entries, m.rows,
                options_.entries_max);
  if (m.expert.size() != entries || m.weight.size() != entries)
    return fail(ec::bad_shape, "{} rows, {} experts, {} weights", entries, m.expert.size(),
                m.weight.size());
  if (m.codes.size() != std::size_t{m.rows} * m.hidden
      || m.scales.size() != std::size_t{m.rows} * (m.hidden / 32))
    return fail(ec::bad_shape, "{} rows of width {} with {} code and {} scale bytes", m.rows,
                m.hidden, m.codes.size(), m.scales.size());
  const placement* known = slots_.current();
  const std::uint32_t experts = known ? known->experts(m.layer) : 0;
  for (std::size_t i = 0; i < entries; ++i)
    if (m.row[i] >= m.rows || (known && m.expert[i] >= experts))
      return fail(ec::bad_argument, "entry {}: row {} of {}, expert {} of {} in layer {}", i,
                  m.row[i], m.rows, m.expert[i], experts, m.layer.v);
  if (decode_.size() + prefill_.size() >= options_.calls_max)
    return fail(ec::unavailable, "{} calls are queued", decode_.size() + prefill_.size());
  return {};
}

result<void> expert_shard_core::on(const proto::expert_batch& m, instant, outbox& out) {
  if (is_queued(m.caller, m.life, m.call))
    return {}; // asked twice; the one answer serves both
  if (const auto fine = admissible(m); !fine) {
    out.count("di_expert_shard_calls_failed_total");
    out.send(rank_path(m.caller), proto::expert_failed{m.call, options_.rank, options_.life,
                                                       fine.error().code, fine.error().what});
    return {};
  }
  // A caller with an older placement is served as long as that is not retired; one with a newer one
  // knows better what lives here, which will show when that comes.
  if (slots_.current()) {
    std::vector<std::uint32_t> missing;
    for (const std::uint32_t expert : m.expert)
      if (!slots_.holds(m.layer, expert))
        missing.push_back(expert);
    if (!missing.empty() && m.placement > version()) {
      if (held_.size() < options_.held_max) {
        out.count("di_expert_shard_calls_held_total");
        held_.push_back(m);
      } else {
        out.send(rank_path(m.caller),
                 proto::expert_failed{m.call, options_.rank, options_.life, ec::unavailable,
                                      fmt::format("{} calls wait for a placement", held_.size())});
      }
      return {};
    }
    if (!missing.empty()) {
      std::sort(missing.begin(), missing.end());
      missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
      out.count("di_expert_shard_calls_moved_total");
      out.send(rank_path(m.caller), proto::expert_moved{m.call, options_.rank, options_.life,
                                                        version(), std::move(missing)});
      return {};
    }
  }
  auto call = std::make_unique<queued_call>();
  call->batch = m;
  call->order.resize(m.row.size());
  std::iota(call->order.begin(), call->order.end(), 0U);
  std::stable_sort(call->order.begin(), call->order.end(),
                   [&m](std::uint32_t a, std::uint32_t b) { return m.expert[a] < m.expert[b]; });
  call->rows.resize(m.row.size() * m.hidden);
  (m.decoding ? decode_ : prefill_).push_back(std::move(call));
  return {};
}

bool expert_shard_core::is_queued(rank_id caller, incarnation life, call_id call) const {
  for (const lane* l : {&decode_, &prefill_})
    for (const auto& queued : *l)
      if (queued->batch.call == call && queued->batch.caller == caller
          && queued->batch.life == life)
        return true;
  return std::any_of(held_.begin(), held_.end(), [&](const proto::expert_batch& m) {
    return m.call == call && m.caller == caller && m.life == life;
  });
}

result<void> expert_shard_core::on(const proto::ask_call& m, instant, outbox& out) {
  out.send(rank_path(m.caller), proto::call_known{m.call, is_queued(m.caller, m.life, m.call)});
  return {};
}

const expert_slice& expert_shard_core::next_slice() {
  DI_CHECK(has_work());
  DI_CHECK(slice_.entries.empty());
  const bool decode_first = prefill_.empty() || decode_turns_ < options_.decode_turns_max;
  const bool decoding = !decode_.empty() && decode_first;
  decode_turns_ = decoding ? decode_turns_ + 1 : 0;
  lane& from = decoding ? decode_ : prefill_;
  slice_.layer = from.front()->batch.layer;
  for (auto& call : from) {
    if (call->batch.layer != slice_.layer)
      continue;
    for (; call->taken < call->order.size(); ++call->taken) {
      if (slice_.entries.size() == options_.slice_rows)
        break;
      slice_.entries.push_back({call.get(), call->order[call->taken]});
    }
  }
  std::stable_sort(slice_.entries.begin(), slice_.entries.end(),
                   [](const slice_entry& a, const slice_entry& b) {
                     return a.call->batch.expert[a.entry] < b.call->batch.expert[b.entry];
                   });
  return slice_;
}

void expert_shard_core::answer(queued_call& call, outbox& out) {
  const proto::expert_batch& m = call.batch;
  ++calls_;
  out.count("di_expert_shard_calls_total");
  if (m.caller != options_.rank)
    out.count("di_expert_shard_remote_calls_total");
  out.count("di_expert_shard_rows_total", static_cast<double>(m.row.size()));
  out.send(rank_path(m.caller), proto::expert_rows{m.call, options_.rank, options_.life,
                                                   shared_bytes::adopt(std::move(call.rows))});
}

void expert_shard_core::finish_slice(outbox& out) {
  ++batches_;
  entries_ += slice_.entries.size();
  out.count("di_expert_shard_batches_total");
  slice_.entries.clear();
  for (lane* l : {&decode_, &prefill_})
    std::erase_if(*l, [&](const std::unique_ptr<queued_call>& call) {
      if (call->taken < call->order.size())
        return false;
      answer(*call, out);
      return true;
    });
}

void expert_shard_core::fail_slice(const error& why, outbox& out) {
  std::vector<queued_call*> failed;
  for (const slice_entry& e : slice_.entries)
    failed.push_back(e.call);
  slice_.entries.clear();
  for (lane* l : {&decode_, &prefill_})
    std::erase_if(*l, [&](const std::unique_ptr<queued_call>& call) {
      if (std::find(failed.begin(), failed.end(), call.get()) == failed.end())
        return false;
      const proto::expert_batch& m = call->batch;
      out.send(rank_path(m.caller),
               proto::expert_failed{m.call, options_.rank, options_.life, why.code, why.what});
      return true;
    });
}

proto::shard_state expert_shard_core::state() const {
  return {
      options_.rank, version(),
      calls_,        entries_,
      batches_,      static_cast<std::uint32_t>(decode_.size() + prefill_.size() + held_.size())};
}

void expert_shard_core::check() const {
  DI_CHECK(decode_.size() + prefill_.size() <= options_.calls_max);
  DI_CHECK(slice_.entries.size() <= options_.slice_rows);
  DI_CHECK(held_.size() <= options_.held_max);
  for (const lane* l : {&decode_, &prefill_})
    for (const auto& call : *l) {
      DI_CHECK(call->taken <= call->order.size());
      DI_CHECK_EQ(call->order.size(), call->batch.row.size());
      DI_CHECK_EQ(call->rows.size(), call->order.size() * call->batch.hidden);
    }
}

} // namespace di::engine
