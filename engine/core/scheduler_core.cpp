// SPDX-License-Identifier: Apache-2.0
// Taking requests in and following them.
#include "engine/core/deadline.hpp"
#include "engine/core/expert_shard_core.hpp" // rank_path
#include "engine/core/resend.hpp"
#include "engine/core/scheduler_request.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/base/result.hpp"
#include "messaging/base/trace.hpp"

#include <algorithm>

namespace di::engine {

scheduler_core::scheduler_core(scheduler_options options)
    : options_{std::move(options)},
      queue_{options_.priority_step},
      tenants_{options_.tenant_choices_max},
      gateways_{options_.gateway_choices_max} {
}

scheduler_core::~scheduler_core() = default;

// --- views and loads

void scheduler_core::install_view(epoch view, std::span<const placed_rank> ranks, instant now,
                                  outbox& out) {
  if (view < view_)
    return;
  view_ = view;
  std::vector<rank_entry> next;
  for (const placed_rank& r : ranks) {
    const rank_entry* old = entry_of(r.rank, r.life);
    next.push_back(old ? *old : rank_entry{});
    next.back().who = r;
  }
  for (const rank_entry& old : ranks_)
    if (old.slowness > 1 && std::none_of(next.begin(), next.end(), [&](const rank_entry& r) {
          return r.who == old.who;
        }))
      out.count("di_scheduler_slow_ranks", -1);
  ranks_ = std::move(next);
  for (auto at = requests_.begin(); at != requests_.end();) {
    const auto here = at++;
    request& r = *here->second;
    if (r.assigned ? !entry_of(r.assigned->rank, r.assigned->life) : named_elsewhere(r)) {
      out.count("di_scheduler_requests_orphaned_total");
      forget(here, out);
    } else {
      if (r.assigned && r.ahead)
        send_assignment(r, now, out);
      std::erase_if(r.refused_by, [](const auto& refusal) { return refusal.second.stale; });
    }
  }
  judge_speeds(out);
  place_queued(now, out);
}

/// Whether it waits for a life that is not in the view.
bool scheduler_core::named_elsewhere(const request& r) const {
  return r.is_named() && std::none_of(ranks_.begin(), ranks_.end(), [&](const rank_entry& rank) {
           return rank.who == r.named();
         });
}

result<void> scheduler_core::on(const proto::view_committed& m, instant now, outbox& out) {
  std::vector<placed_rank> ranks;
  for (const proto::view_member& member : m.members)
    ranks.push_back({member.rank, member.life});
  install_view(m.view, ranks, now, out);
  return {};
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

result<void> scheduler_core::on(const proto::rank_load& m, instant now, outbox& out) {
  rank_entry* r = entry_of(m.rank, m.life);
  if (!r || m.report <= r->load.report)
    return {};
  if (m.rows_done > r->load.rows_done)
    out.count("di_scheduler_rows_total", static_cast<double>(m.rows_done - r->load.rows_done));
  if (m.rows_done > rows_most_) { // totals only: the sum of these is the most of all ranks
    out.count("di_scheduler_rows_of_busiest_rank", static_cast<double>(m.rows_done - rows_most_));
    rows_most_ = m.rows_done;
  }
  const bool speeds = m.slow != r->load.slow || m.slow_percent != r->load.slow_percent;
  r->load = m;
  for (const request_id id : r->taken)
    if (const auto at = requests_.find(id); at != requests_.end() && at->second->assigned == r->who)
      counted(*r, *at->second);
  r->taken.clear();
  if (speeds)
    judge_speeds(out);
  place_queued(now, out);
  return {};
}

double scheduler_core::balance() const {
  std::uint64_t sum = 0, most = 0;
  for (const rank_entry& r : ranks_) {
    sum += r.load.rows_done;
    most = std::max(most, r.load.rows_done);
  }
  return sum == 0 ? 0
                  : static_cast<double>(most) * static_cast<double>(ranks_.size())
                        / static_cast<double>(sum);
}

// --- admission

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
    forget(at, out);
  }
  const placed_rank named{m.placed_rank, m.placed_life};
  if (view_ != epoch{} && named.life != incarnation{} && !entry_of(named.rank, named.life))
    return {}; // JOURNAL opens its next attempt when it knows the view
  if (!take_in(m, now, out))
    return {};
  place_queued(now, out);
  if (const auto at = requests_.find(id); at != requests_.end() && !at->second->assigned)
    out.send(options_.journal, proto::request_admitted{id, m.attempt, false, {}, {}});
  return {};
}

/// [requests] queued without those that wait for the life that has them.
std::size_t scheduler_core::waiting_anywhere() const {
  return static_cast<std::size_t>(
      std::count_if(requests_.begin(), requests_.end(),
                    [](const auto& r) { return !r.second->assigned && !r.second->is_named(); }));
}

/// Queue, quotas, deadline. @return false if it was refused
bool scheduler_core::take_in(const proto::admit_request& m, instant now, outbox& out) {
  const proto::request_spec& spec = m.spec;
  const std::uint64_t choices = spec.sampling.n;
  if (m.attempt <= 1) {
    const auto over = [&](std::string_view what, std::string_view name, const open_quota& quota) {
      refuse(m, ec::limit_exceeded,
             fmt::format("{} '{}': {} choices open and {} more pass its quota of {}", what, name,
                         quota.open(name), choices, quota.most()),
             out);
      return false;
    };
    const bool named = m.placed_life != incarnation{}; // was taken in by an earlier life of control
    if (!named && queue_.size() >= options_.queue_max)
      if (const std::size_t queued = waiting_anywhere(); queued >= options_.queue_max) {
        refuse(m, ec::unavailable,
               fmt::format("{} requests are queued, at most {}", queued, options_.queue_max), out);
        return false;
      }
    if (!tenants_.fits(spec.tenant, choices))
      return over("tenant", spec.tenant, tenants_);
    if (!gateways_.fits(spec.gateway, choices))
      return over("gateway", spec.gateway, gateways_);
  }
  auto made = std::make_unique<request>();
  made->what = m;
  const duration head_start = 2 * priority_max * options_.priority_step;
  made->place = queue_.add(spec.request, spec.priority,
                           m.attempt <= 1 ? now : instant{now.ns - head_start.count()});
  if (spec.deadline_ms > 0) {
    const duration left =
        deadline_span(m.deadline_left_ms > 0 ? m.deadline_left_ms : spec.deadline_ms);
    made->deadline = now + left;
    out.arm({deadline_due, spec.request.v}, left);
  }
  tenants_.take(spec.tenant, choices);
  gateways_.take(spec.gateway, choices);
  requests_.emplace(spec.request, std::move(made));
  out.count("di_scheduler_requests_total");
  return true;
}

void scheduler_core::refuse(const proto::admit_request& m, ec code, std::string what, outbox& out) {
  out.count("di_scheduler_requests_refused_total");
  out.send(options_.journal,
           proto::admission_refused{m.spec.request, m.attempt, code, std::move(what)});
}

/// Nothing of it is left here: place, room, quotas, timer.
void scheduler_core::forget(request_map::iterator at, outbox& out) {
  request& r = *at->second;
  if (r.assigned)
    unassign(r);
  else
    queue_.remove(r.place);
  tenants_.give_back(r.what.spec.tenant, r.choices());
  gateways_.give_back(r.what.spec.gateway, r.choices());
  if (r.deadline)
    out.disarm({deadline_due, at->first.v});
  requests_.erase(at);
}

// --- what becomes of an assignment

scheduler_core::request* scheduler_core::serving(request_id id, std::uint32_t attempt, rank_id rank,
                                                 incarnation life) {
  const auto at = requests_.find(id);
  return at != requests_.end() && at->second->what.attempt == attempt
                 && at->second->assigned == placed_rank{rank, life}
             ? at->second.get()
             : nullptr;
}

result<void> scheduler_core::on(const proto::request_taken& m, instant, outbox&) {
  request* r = serving(m.request, m.attempt, m.rank, m.life);
  if (!r || r->confirmed)
    return {};
  r->confirmed = true;
  if (!r->reported)
    entry_of(m.rank, m.life)->taken.push_back(m.request);
  return {};
}

result<void> scheduler_core::on(const proto::request_settled& m, instant now, outbox& out) {
  if (!serving(m.request, m.attempt, m.rank, m.life))
    return {};
  out.send(options_.journal, m); // its end may have been accepted by a life that lost it
  forget(requests_.find(m.request), out);
  place_queued(now, out);
  return {};
}

result<void> scheduler_core::on(const proto::assignment_refused& m, instant now, outbox& out) {
  request* r = serving(m.request, m.attempt, m.rank, m.life);
  if (!r)
    return {};
  if (m.code == ec::stale_epoch) {
    reached("scheduler.meets_other_view");
    // Another assignment may be on its way to it, so no other rank may have the attempt.
    r->ahead = r->sent_view == view_;
    if (!r->ahead && !r->confirmed)
      send_assignment(*r, now, out);
    return {};
  }
  const bool stale = m.code == ec::stale_incarnation;
  const bool another_may = stale || m.code == ec::unavailable || m.code == ec::kv_exhausted;
  if (!another_may) {
    refuse(r->what, m.code, m.what, out);
    forget(requests_.find(m.request), out);
  } else {
    unassign(*r);
    // What is too large for a rank stays so; what was refused for another reason is tried again
    // once the rank's state has changed, or later if its report was lost. Who knows another view
    // than this does not mean the request.
    const auto report = entry_of(m.rank, m.life)->load.report;
    r->refused_by[m.rank] = {
        m.life, m.code == ec::kv_exhausted ? request::refusal::for_ever : report, stale, now};
    arm(out);
    r->what.placed_life = {}; // whoever was named has it not
    r->last_refusal = {m.code, m.what};
    queue_.put_back(r->place);
  }
  place_queued(now, out);
  return {};
}

result<void> scheduler_core::on(const proto::release_request& m, instant now, outbox& out) {
  const auto at = requests_.find(m.request);
  if (at == requests_.end())
    return {};
  const request& r = *at->second;
  if (m.withdraw && r.assigned)
    out.send(rank_path(r.assigned->rank), proto::withdraw_request{m.request, r.what.attempt});
  forget(at, out);
  place_queued(now, out);
  return {};
}

void scheduler_core::expire(request_id id, instant now, outbox& out) {
  const auto at = requests_.find(id);
  if (at == requests_.end() || !at->second->deadline || now < *at->second->deadline)
    return;
  const request& r = *at->second;
  out.count("di_scheduler_deadlines_passed_total");
  if (r.assigned)
    out.send(rank_path(r.assigned->rank), proto::withdraw_request{id, r.what.attempt});
  refuse(r.what, ec::deadline_exceeded, deadline_words(id, r.what.spec.deadline_ms), out);
  forget(at, out);
  place_queued(now, out);
}

result<proto::schedule> scheduler_core::on(const proto::get_schedule&) const {
  proto::schedule s;
  s.view = view_;
  s.queued = queue_.size();
  s.balance = balance();
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
  if (which.kind == deadline_due)
    expire(request_id{which.key}, now, out);
  if (which.kind != resend_due)
    return {};
  armed_ = false;
  for (auto& [id, r] : requests_) {
    if (!r->assigned) {
      if (r->forget_refusals(options_.retry_after, now))
        arm(out);
      continue;
    }
    if (!planted("assignment_not_resent")
        && now - r->sent >= (r->confirmed ? options_.remind_after : r->wait)) {
      reached("scheduler.assigns_again");
      send_assignment(*r, now, out);
      r->wait = longer(r->wait);
    }
    arm(out);
  }
  place_queued(now, out);
  return {};
}

void scheduler_core::arm(outbox& out) {
  if (!armed_)
    out.arm({resend_due, 0}, options_.resend_after);
  armed_ = true;
}

void scheduler_core::check() const {
  struct sums {
    std::uint64_t choices = 0, kv = 0, rows = 0, new_rows = 0, new_choices = 0;
  };
  std::map<rank_id, sums> of;
  std::map<std::string, std::uint64_t> tenants;
  std::size_t queued = 0;
  for (const auto& [id, r] : requests_) {
    tenants[r->what.spec.tenant] += r->choices();
    if (!r->assigned) {
      ++queued;
      DI_CHECK(queue_.places().contains(r->place));
      continue;
    }
    sums& s = of[r->assigned->rank];
    s.choices += r->choices();
    s.kv += r->kv_tokens(options_.expected_output_tokens);
    s.rows += r->prompt_rows();
    s.new_rows += r->reported ? 0 : r->prompt_rows();
    s.new_choices += r->reported ? 0 : r->choices();
  }
  DI_CHECK_EQ(queued, queue_.size());
  for (const rank_entry& r : ranks_) {
    const sums& s = of[r.who.rank];
    DI_CHECK_EQ(s.choices, r.choices);
    DI_CHECK_EQ(s.kv, r.kv_tokens);
    DI_CHECK_EQ(s.rows, r.prompt_rows);
    DI_CHECK_EQ(s.new_rows, r.new_rows);
    DI_CHECK_EQ(s.new_choices, r.new_choices);
  }
  for (const auto& [tenant, choices] : tenants)
    DI_CHECK_EQ(tenants_.open(tenant), choices);
}

} // namespace di::engine
