// SPDX-License-Identifier: Apache-2.0
// Queueing, placing and following requests.
#include "engine/core/scheduler_core.hpp"

#include "engine/core/expert_shard_core.hpp" // rank_path
#include "messaging/base/result.hpp"
#include "messaging/base/trace.hpp"

#include <algorithm>

namespace di::engine {

namespace {
constexpr duration resend_most = std::chrono::seconds{8}; ///< waits double up to this
}

struct scheduler_core::request {
  proto::admit_request what;
  std::optional<placed_rank> assigned;
  bool confirmed = false; ///< the rank has shown that it has it
  instant sent;
  duration wait{}; ///< until it is sent again, unless it is confirmed
  std::set<rank_id> refused_by;
  error last_refusal{ec::unavailable, "no rank serves"};

  std::uint64_t choices() const { return what.spec.sampling.n; }
  std::uint64_t rows() const {
    return choices() * (what.spec.prompt.size() + std::uint64_t{what.spec.sampling.max_tokens});
  }
};

scheduler_core::scheduler_core(scheduler_options options) : options_{std::move(options)} {
}

scheduler_core::~scheduler_core() = default;

void scheduler_core::install_view(epoch view, std::span<const placed_rank> ranks, instant now,
                                  outbox& out) {
  if (view < view_)
    return;
  view_ = view;
  std::vector<rank_entry> next;
  for (const placed_rank& r : ranks) {
    const rank_entry* old = entry_of(r.rank, r.life);
    next.push_back(old ? *old : rank_entry{r, {}, 0, 0, 0});
  }
  ranks_ = std::move(next);
  std::erase_if(requests_, [this](const auto& item) {
    const auto& assigned = item.second->assigned;
    return assigned && !entry_of(assigned->rank, assigned->life);
  });
  place_queued(now, out);
}

result<void> scheduler_core::on(const proto::placement_settled& m, instant now, outbox& out) {
  if (m.ranks.size() != m.lives.size())
    return fail(ec::bad_shape, "{} ranks with {} incarnations", m.ranks.size(), m.lives.size());
  std::vector<placed_rank> ranks;
  for (std::size_t i = 0; i < m.ranks.size(); ++i)
    ranks.push_back({m.ranks[i], m.lives[i]});
  install_view(m.view, ranks, now, out);
  return {};
}

scheduler_core::rank_entry* scheduler_core::entry_of(rank_id rank, incarnation life) {
  for (rank_entry& r : ranks_)
    if (r.who == placed_rank{rank, life})
      return &r;
  return nullptr;
}

result<void> scheduler_core::on(const proto::admit_request& m, instant now, outbox& out) {
  const request_id id = m.spec.request;
  const trace::span admitting{
      trace::kind::admit, {.rows = static_cast<std::uint32_t>(m.spec.prompt.size())}, id};
  if (const auto at = requests_.find(id); at != requests_.end()) {
    request& r = *at->second;
    if (r.what.attempt >= m.attempt) {
      const placed_rank to = r.assigned.value_or(placed_rank{});
      out.send(options_.journal, proto::request_admitted{id, r.what.attempt, r.assigned.has_value(),
                                                         to.rank, to.life});
      return {};
    }
    unassign(r);
    std::erase(queue_, id);
    requests_.erase(at);
  }
  auto made = std::make_unique<request>();
  made->what = m;
  if (queue_.size() >= options_.queue_max) {
    refuse(*made, ec::unavailable, fmt::format("{} requests are queued", queue_.size()), out);
    return {};
  }
  requests_.emplace(id, std::move(made));
  queue_.push_back(id);
  out.count("di_scheduler_requests_total");
  place_queued(now, out);
  if (const auto at = requests_.find(id); at != requests_.end() && !at->second->assigned)
    out.send(options_.journal, proto::request_admitted{id, m.attempt, false, {}, {}});
  return {};
}

scheduler_core::rank_entry* scheduler_core::least_loaded(const request& r) {
  rank_entry* best = nullptr;
  for (rank_entry& rank : ranks_) {
    if (rank.load.draining || r.refused_by.contains(rank.who.rank))
      continue;
    // An idle rank takes any request, however many choices it has.
    if (rank.choices > 0 && rank.choices + r.choices() > options_.assigned_per_rank_max)
      continue;
    if (!best || rank.rows < best->rows
        || (rank.rows == best->rows && rank.choices < best->choices))
      best = &rank;
  }
  return best;
}

/// In order of arrival; stops at the first request that finds no room, so that none starves.
void scheduler_core::place_queued(instant now, outbox& out) {
  while (!queue_.empty() && !ranks_.empty()) {
    request& r = *requests_.at(queue_.front());
    rank_entry* to = least_loaded(r);
    if (!to) {
      if (r.refused_by.size() < ranks_.size())
        return;
      queue_.pop_front();
      refuse(r, r.last_refusal.code, r.last_refusal.what, out);
      requests_.erase(r.what.spec.request);
      continue;
    }
    queue_.pop_front();
    assign(r, *to, now, out);
  }
}

void scheduler_core::assign(request& r, rank_entry& to, instant now, outbox& out) {
  r.assigned = to.who;
  r.confirmed = false;
  r.wait = options_.resend_after;
  to.choices += r.choices();
  to.rows += r.rows();
  ++to.requests;
  send_assignment(r, now, out);
  out.send(options_.journal, proto::request_admitted{r.what.spec.request, r.what.attempt, true,
                                                     to.who.rank, to.who.life});
}

void scheduler_core::send_assignment(request& r, instant now, outbox& out) {
  r.sent = now;
  const trace::span assigning{
      trace::kind::assign, {.value = static_cast<float>(r.assigned->rank.v)}, r.what.spec.request};
  out.send(rank_path(r.assigned->rank), proto::assign_request{r.what.spec, r.what.attempt, view_,
                                                              r.assigned->life, r.what.progress});
  arm(out);
}

void scheduler_core::unassign(request& r) {
  if (!r.assigned)
    return;
  if (rank_entry* from = entry_of(r.assigned->rank, r.assigned->life)) {
    from->choices -= r.choices();
    from->rows -= r.rows();
    --from->requests;
  }
  r.assigned.reset();
}

void scheduler_core::refuse(const request& r, ec code, std::string what, outbox& out) {
  out.count("di_scheduler_requests_refused_total");
  out.send(options_.journal,
           proto::admission_refused{r.what.spec.request, r.what.attempt, code, std::move(what)});
}

result<void> scheduler_core::on(const proto::rank_load& m, instant now, outbox& out) {
  rank_entry* r = entry_of(m.rank, m.life);
  if (!r || m.report <= r->load.report)
    return {};
  r->load = m;
  place_queued(now, out);
  return {};
}

result<void> scheduler_core::on(const proto::request_taken& m, instant, outbox&) {
  const auto at = requests_.find(m.request);
  if (at != requests_.end() && at->second->what.attempt == m.attempt
      && at->second->assigned == placed_rank{m.rank, m.life})
    at->second->confirmed = true;
  return {};
}

result<void> scheduler_core::on(const proto::request_settled& m, instant now, outbox& out) {
  const auto at = requests_.find(m.request);
  if (at == requests_.end() || at->second->what.attempt != m.attempt
      || at->second->assigned != placed_rank{m.rank, m.life})
    return {};
  unassign(*at->second);
  requests_.erase(at);
  place_queued(now, out);
  return {};
}

result<void> scheduler_core::on(const proto::assignment_refused& m, instant now, outbox& out) {
  const auto at = requests_.find(m.request);
  if (at == requests_.end() || at->second->what.attempt != m.attempt
      || at->second->assigned != placed_rank{m.rank, m.life})
    return {};
  request& r = *at->second;
  unassign(r);
  const bool another_may = m.code == ec::unavailable || m.code == ec::stale_epoch
                           || m.code == ec::stale_incarnation || m.code == ec::kv_exhausted;
  if (!another_may) {
    refuse(r, m.code, m.what, out);
    requests_.erase(at);
  } else {
    r.refused_by.insert(m.rank);
    r.last_refusal = {m.code, m.what};
    queue_.push_front(m.request);
  }
  place_queued(now, out);
  return {};
}

result<void> scheduler_core::on(const proto::release_request& m, instant now, outbox& out) {
  const auto at = requests_.find(m.request);
  if (at == requests_.end())
    return {};
  request& r = *at->second;
  if (m.withdraw && r.assigned)
    out.send(rank_path(r.assigned->rank), proto::withdraw_request{m.request, r.what.attempt});
  unassign(r);
  std::erase(queue_, m.request);
  requests_.erase(at);
  place_queued(now, out);
  return {};
}

result<proto::schedule> scheduler_core::on(const proto::get_schedule&) const {
  proto::schedule s;
  s.view = view_;
  s.queued = queue_.size();
  for (const rank_entry& r : ranks_) {
    s.ranks.push_back(r.load);
    s.ranks.back().rank = r.who.rank;
    s.ranks.back().life = r.who.life;
    s.assigned.push_back(r.requests);
  }
  return s;
}

/// Assignments may be lost with a link; a rank ignores what it has already.
result<void> scheduler_core::on_due(timer which, instant now, outbox& out) {
  if (which.kind != resend_due)
    return {};
  armed_ = false;
  for (auto& [id, r] : requests_) {
    if (!r->assigned)
      continue;
    if (now - r->sent >= (r->confirmed ? options_.remind_after : r->wait)) {
      send_assignment(*r, now, out);
      r->wait = std::max(r->wait, std::min(2 * r->wait, resend_most));
    }
    arm(out);
  }
  return {};
}

void scheduler_core::arm(outbox& out) {
  if (!armed_)
    out.arm({resend_due, 0}, options_.resend_after);
  armed_ = true;
}

void scheduler_core::check() const {
  std::map<rank_id, std::uint64_t> choices;
  std::size_t queued = 0;
  for (const auto& [id, r] : requests_) {
    if (r->assigned)
      choices[r->assigned->rank] += r->choices();
    else
      ++queued;
  }
  DI_CHECK_EQ(queued, queue_.size());
  DI_CHECK(queue_.size() <= options_.queue_max + 1);
  for (const rank_entry& r : ranks_)
    DI_CHECK_EQ(choices[r.who.rank], r.choices);
}

} // namespace di::engine
