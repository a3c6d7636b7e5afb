// SPDX-License-Identifier: Apache-2.0
// What KEEPER hears and when it looks again; the ways of one rank are in keeper_ways.cpp, orders in
// keeper_orders.cpp.
#include "engine/core/keeper_core.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace di::engine {
namespace {

constexpr duration ask_timeout = std::chrono::seconds{1};

std::int64_t ms(duration d) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
}

} // namespace

std::string_view to_string(kept_state s) noexcept {
  constexpr std::array<std::string_view, 10> names{"absent",    "waiting",    "starting", "proving",
                                                   "admitting", "member",     "draining", "leaving",
                                                   "fenced",    "quarantined"};
  return names[static_cast<std::size_t>(s)];
}

keeper_core::keeper_core(keeper_options options) : options_{std::move(options)} {
  for (const auto& home : options_.ranks) {
    kept k;
    k.home = home;
    k.credit = options_.restart_window;
    ranks_.emplace(home.rank, std::move(k));
  }
}

// --- facts --------------------------------------------------------------------------------------

void keeper_core::on(const proto::group_formed& m, instant /*now*/, outbox& out) {
  if (view_.view.v != 0) {
    out.count("di_keeper_stale_facts_total");
    return;
  }
  formed_ = true;
  for (const auto& p : m.processes)
    if (auto* k = p.role == "rank" ? find(p.rank) : nullptr)
      k->life = p.life;
}

void keeper_core::on(const proto::view_committed& m, instant now, outbox& out) {
  if (m.view <= view_.view) {
    out.count("di_keeper_stale_facts_total");
    return;
  }
  const bool first = view_.view.v == 0;
  view_ = m;
  for (auto& [rank, k] : ranks_)
    look(k, first, now, out);
  proceed(now, out);
}

/// What a new view means for a rank.
void keeper_core::look(kept& k, bool first, instant now, outbox& out) {
  if (first)
    k.credit_at = now;
  if (first && !formed_) // else lives without a process were not announced
    for (const auto& m : view_.members)
      if (m.rank == k.home.rank)
        k.life = m.life;
  if (member(k)) {
    switch (k.state) {
    case kept_state::absent:
    case kept_state::waiting:
    case kept_state::starting:
    case kept_state::proving:
    case kept_state::admitting:
      k.state = kept_state::member;
      k.member_since = now;
      k.asked = 0;
      return out.count("di_keeper_members_total");
    default:
      return; // on its way out, and the view does not know yet
    }
  }
  switch (k.state) {
  case kept_state::member:
    return fence(k, fmt::format("not in view {}", view_.view.v), now, out);
  case kept_state::draining:
    return leave(k, now, out);
  case kept_state::leaving:
    return k.ending ? void() : end_process(k, now, out);
  case kept_state::absent:
    if (first && k.life.v != 0) // a process of an earlier control, expelled or not yet admitted
      return fence(k, fmt::format("not in view {}", view_.view.v), now, out);
    if (first && k.wanted && comes_back(k))
      return rest(k, now, out);
    return;
  default:
    return;
  }
}

void keeper_core::on(const proto::member_lost& m, instant now, outbox& out) {
  auto* k = find(m.rank);
  if (k && k->life.v == 0 && k->over != m.life) {
    lost_unheard(*k, m.life, m.reason, now, out);
    return proceed(now, out);
  }
  if (!k || (k->life != m.life && k->over != m.life)) {
    out.count("di_keeper_stale_facts_total");
    return;
  }
  const bool was_in = k->state == kept_state::member || k->state == kept_state::draining;
  const bool comes = k->state == kept_state::proving || k->state == kept_state::admitting;
  if (was_in || comes || (k->state == kept_state::fenced && !k->blameless))
    k->last_reason = m.reason;
  last_reason_ = fmt::format("rank {}: {}", m.rank.v, m.reason);
  if (k->life == m.life) {
    if (k->state == kept_state::member || comes)
      fence(*k, m.reason, now, out);
    else if (k->state == kept_state::draining)
      leave(*k, now, out);
    if (was_in && options_.loss == on_loss::restart_smaller)
      regroup(now, out);
  }
  proceed(now, out);
}

void keeper_core::on(const proto::rank_exited& m, instant now, outbox& out) {
  auto* k = find(m.rank);
  if (!k || k->life != m.life || m.life.v == 0) {
    out.count("di_keeper_stale_facts_total");
    return;
  }
  exited(*k, m.words, now, out);
  proceed(now, out);
}

void keeper_core::on(const proto::process_ready& m, instant now, outbox& out) {
  const auto& p = m.process;
  auto* k = p.role == "rank" ? find(p.rank) : nullptr;
  if (!k || p.life == k->over) {
    out.count("di_keeper_stale_facts_total");
    return;
  }
  const bool coming = k->state == kept_state::starting || k->state == kept_state::proving;
  if (coming && (k->life == p.life || k->life.v == 0)) {
    k->life = p.life; // the node's own answer may be lost
    k->unheard = {};
    k->asked = 0;
    k->ready = {p.rank, p.node, p.life, p.prefix};
    k->state = kept_state::admitting;
    if (!regrouping_)
      admit(*k, now, out);
  } else if (k->life == p.life) {
    out.count("di_keeper_stale_facts_total");
  } else {
    kept stranger = *k;
    stranger.life = p.life;
    if (k->life.v == 0 && !coming) { // nobody asked for it: it is ended like one that was lost
      k->life = p.life;
      fence(*k, "nobody asked for this process", now, out);
    } else {
      kill(stranger, false, "nobody asked for this process", out);
    }
  }
  proceed(now, out);
}

// --- time ---------------------------------------------------------------------------------------

void keeper_core::on_answer(std::uint64_t tag, const result<parcel>& answer, instant now,
                            outbox& out) {
  const auto asked = questions_.find(tag);
  if (asked == questions_.end())
    return;
  auto& k = ranks_.at(asked->second);
  questions_.erase(asked);
  if (k.asked != tag)
    return; // it went on without the answer
  k.asked = 0;
  if (k.state == kept_state::starting) {
    start_answered(k, answer, now, out);
  } else if (k.state == kept_state::draining) {
    const auto* s = answer ? answer->as<proto::rank_state>() : nullptr;
    if (s && s->life == k.life && s->running == 0 && s->waiting == 0 && s->unacknowledged == 0)
      leave(k, now, out);
    else
      k.again = now + options_.ask_every;
  }
  proceed(now, out);
}

void keeper_core::on_due(timer which, instant now, outbox& out) {
  if (which.kind == wake_due)
    proceed(now, out);
}

void keeper_core::further(kept& k, instant now, outbox& out) {
  switch (k.state) {
  case kept_state::waiting:
    if (k.due <= now && !joining_now())
      start(k, now, out);
    return;
  case kept_state::proving:
  case kept_state::admitting:
    if (k.due <= now && (k.state == kept_state::proving || may_be_late()))
      return fence(k,
                   fmt::format("not in the view {} ms after its start", ms(options_.join_timeout)),
                   now, out);
    if (k.state == kept_state::admitting && !regrouping_ && k.again <= now)
      admit(k, now, out);
    return;
  case kept_state::absent:
    return dismiss(k, now, out);
  case kept_state::quarantined:
    dismiss(k, now, out);
    if (k.wanted && options_.quarantine > duration{} && k.due <= now && !regrouping_) {
      if (!spend(k, now)) {
        k.due = now + options_.quarantine;
        return;
      }
      rest(k, now, out);
      further(k, now, out);
    }
    return;
  default:
    return further_out(k, now, out);
  }
}

/// The same for ranks on their way out.
void keeper_core::further_out(kept& k, instant now, outbox& out) {
  switch (k.state) {
  case kept_state::draining:
    if (k.due <= now)
      return leave(k, now, out);
    if (k.again <= now && k.asked == 0) {
      const auto rank = fmt::format("/rank/{}/rank", k.home.rank.v);
      k.asked = ++last_tag_;
      questions_[k.asked] = k.home.rank;
      out.send(rank, proto::drain_rank{}); // a rank forgets it with each view
      out.request(rank, proto::get_rank{}, k.asked, ask_timeout);
    }
    return;
  case kept_state::leaving:
    if (k.again > now)
      return;
    if (!k.ending)
      return leave(k, now, out);
    k.again = now + options_.resend_after;
    return kill(k, false, "it did not end", out);
  case kept_state::fenced:
    if (k.again <= now) {
      k.again = now + options_.resend_after;
      kill(k, false, k.last_reason, out);
    }
    return;
  default:
    return;
  }
}

std::optional<instant> keeper_core::next_of(const kept& k) const {
  switch (k.state) {
  case kept_state::waiting:
    return joining_now() ? std::nullopt : std::optional{k.due};
  case kept_state::proving:
    return k.due;
  case kept_state::admitting:
    if (regrouping_)
      return std::nullopt;
    return may_be_late() ? std::min(k.due, k.again) : k.again;
  case kept_state::draining:
    return k.asked != 0 ? k.due : std::min(k.due, k.again);
  case kept_state::leaving:
  case kept_state::fenced:
    return k.again;
  case kept_state::absent:
    return of_rank(k.home.rank) && !regrouping_ ? std::optional{k.again} : std::nullopt;
  case kept_state::quarantined:
    if (of_rank(k.home.rank) && !regrouping_)
      return k.again;
    return k.wanted && options_.quarantine > duration{} && !regrouping_ ? std::optional{k.due}
                                                                        : std::nullopt;
  default:
    return std::nullopt;
  }
}

void keeper_core::proceed(instant now, outbox& out) {
  if (gave_up_)
    return;
  if (regrouping_)
    regroup_further(now, out);
  order_further(now, out);
  for (auto& [rank, k] : ranks_)
    further(k, now, out);
  order_further(now, out);
  give_up_if_hopeless(out);
  std::optional<instant> next;
  const auto wake_at = [&](std::optional<instant> t) {
    if (t && (!next || *t < *next))
      next = t;
  };
  for (const auto& [rank, k] : ranks_)
    wake_at(next_of(k));
  if (regrouping_ && regroup_again_ > now)
    wake_at(regroup_again_);
  if (next && !gave_up_)
    out.arm({wake_due, 0}, std::max(*next - now, duration{std::chrono::milliseconds{1}}));
  else
    out.disarm({wake_due, 0});
}

/// In the group, or on the way in by itself.
bool keeper_core::is_possible(const kept& k) const noexcept {
  switch (k.state) {
  case kept_state::absent:
  case kept_state::quarantined:
    return false;
  case kept_state::fenced:
    return k.wanted && comes_back(k);
  case kept_state::leaving:
    return k.returns;
  default:
    return true;
  }
}

void keeper_core::give_up_if_hopeless(outbox& out) {
  const std::size_t least = std::max(1U, options_.members_min);
  if (view_.view.v == 0 || living() >= least)
    return;
  const auto possible = std::count_if(ranks_.begin(), ranks_.end(),
                                      [&](const auto& x) { return is_possible(x.second); });
  if (static_cast<std::size_t>(possible) >= least)
    return;
  gave_up_ = true;
  out.fail({ec::gave_up,
            fmt::format("{} ranks are left, at least {} are needed (supervisor.min_ep), and not "
                        "enough come back{}; last loss: {}",
                        living(), least,
                        options_.rejoin ? ": restarts are used up" : " (supervisor.rejoin: manual)",
                        last_reason_.empty() ? "unknown" : last_reason_)});
}

// --- small --------------------------------------------------------------------------------------

keeper_core::kept* keeper_core::find(rank_id rank) {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? nullptr : &found->second;
}

/// Whatever life of the rank the view has.
const proto::view_member* keeper_core::of_rank(rank_id rank) const {
  const auto found = std::find_if(view_.members.begin(), view_.members.end(),
                                  [&](const auto& m) { return m.rank == rank; });
  return found == view_.members.end() ? nullptr : &*found;
}

const proto::view_member* keeper_core::member(const kept& k) const {
  if (k.life.v == 0)
    return nullptr;
  const auto found = std::find_if(view_.members.begin(), view_.members.end(), [&](const auto& m) {
    return m.rank == k.home.rank && m.life == k.life;
  });
  return found == view_.members.end() ? nullptr : &*found;
}

std::size_t keeper_core::living() const {
  return static_cast<std::size_t>(std::count_if(ranks_.begin(), ranks_.end(), [](const auto& x) {
    return x.second.state == kept_state::member || x.second.state == kept_state::draining;
  }));
}

/// By itself, once it has a token.
bool keeper_core::comes_back(const kept& k) const noexcept {
  return options_.rejoin || options_.loss != on_loss::shrink || order_.kind == order_kind::scale
         || (!order_.todo.empty() && order_.todo.front() == k.home.rank);
}

/// An admitted rank is late only if MEMBERSHIP could take it in at once: too few members are held
/// back until more come.
bool keeper_core::may_be_late() const {
  return !regrouping_ && living() >= options_.members_min;
}

/// Someone is on the way in, and others must wait.
bool keeper_core::joining_now() const {
  if (regrouping_ || options_.loss == on_loss::restart)
    return false;
  const bool enough = living() >= options_.members_min;
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& x) {
    const auto s = x.second.state;
    return s == kept_state::starting || s == kept_state::proving
           || (s == kept_state::admitting && enough);
  });
}

kept_state keeper_core::state(rank_id rank) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? kept_state::absent : found->second.state;
}

result<proto::keeper_state> keeper_core::on(const proto::get_keeper& /*m*/, instant now,
                                            outbox& /*out*/) const {
  proto::keeper_state s;
  s.view = view_.view;
  s.order = order_.kind == order_kind::none ? std::string{} : order_.words;
  for (const auto& [rank, k] : ranks_) {
    s.wanted += k.wanted ? 1 : 0;
    proto::kept_rank r;
    r.rank = rank;
    r.node = k.home.node;
    r.life = k.life;
    r.state = to_string(k.state);
    r.deaths = k.deaths;
    r.starts = k.starts;
    const bool waits = k.state == kept_state::waiting
                       || (k.state == kept_state::quarantined && options_.quarantine > duration{});
    r.wait_ms = waits && k.due > now ? static_cast<std::uint64_t>(ms(k.due - now)) : 0;
    r.last_reason = k.last_reason;
    s.ranks.push_back(std::move(r));
  }
  return s;
}

void keeper_core::check() const {
  std::size_t joining = 0;
  for (const auto& [rank, k] : ranks_) {
    DI_CHECK(rank == k.home.rank);
    DI_CHECK(k.credit >= duration{} && k.credit <= options_.restart_window);
    const bool runs = k.state == kept_state::proving || k.state == kept_state::admitting
                      || k.state == kept_state::member || k.state == kept_state::draining
                      || k.state == kept_state::leaving || k.state == kept_state::fenced;
    DI_CHECK(runs == (k.life.v != 0) || k.state == kept_state::starting || view_.view.v == 0);
    DI_CHECK(k.life.v == 0 || k.life != k.over);
    joining += k.state == kept_state::starting || k.state == kept_state::proving ? 1 : 0;
  }
  DI_CHECK(joining <= 1 || regrouping_ || options_.loss == on_loss::restart
           || living() < options_.members_min);
}

} // namespace di::engine
