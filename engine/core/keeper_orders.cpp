// SPDX-License-Identifier: Apache-2.0
// Orders of the operator, and restart_smaller: what is done to many ranks in turn.
#include "engine/core/keeper_core.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::engine {

// --- restart_smaller ----------------------------------------------------------------------------

/// A rank is lost: all others are ended too.
void keeper_core::regroup(instant now, outbox& out) {
  if (!regrouping_) {
    out.count("di_keeper_regroupings_total");
    regrouping_ = true;
    regroup_ranks_ = static_cast<std::uint32_t>(living());
    regroup_again_ = now;
    if (order_.kind != order_kind::none)
      order_failed(ec::cancelled, "the group is started anew", out);
  }
  for (auto& [rank, k] : ranks_)
    if (k.state == kept_state::member || k.state == kept_state::draining
        || k.state == kept_state::admitting || k.state == kept_state::proving) {
      fence(k, "the group is started anew (on_rank_loss: restart_smaller)", now, out);
      k.blameless = true;
    }
}

void keeper_core::regroup_further(instant now, outbox& out) {
  bool all_gone = true, replaced = false;
  std::uint32_t ready = 0, able = 0;
  std::vector<proto::view_member> members;
  for (auto& [rank, k] : ranks_) {
    all_gone = all_gone && k.state != kept_state::fenced && k.state != kept_state::leaving;
    const bool may =
        k.wanted && k.state != kept_state::quarantined && k.state != kept_state::absent;
    if (!may)
      continue;
    if (++able > regroup_ranks_ && k.state == kept_state::waiting) {
      k.state = kept_state::absent; // not one of the smaller group
      k.wanted = false;
      continue;
    }
    replaced = replaced || k.state == kept_state::member; // all old ones are fenced
    if (k.state == kept_state::admitting) {
      ++ready;
      members.push_back(k.ready);
    }
  }
  if (replaced) { // who was too late joins like any other
    regrouping_ = false;
    for (auto& [rank, k] : ranks_)
      k.again = k.state == kept_state::admitting ? now : k.again;
    return;
  }
  if (!all_gone || ready == 0 || ready < std::min(able, regroup_ranks_))
    return;
  if (regroup_again_ > now)
    return;
  regroup_again_ = now + options_.resend_after;
  out.send(options_.membership, proto::replace_group{std::move(members), last_reason_});
}

// --- orders -------------------------------------------------------------------------------------

bool keeper_core::begin(order o, outbox& out) {
  const auto refuse = [&](ec code, std::string what) {
    out.refuse(o.ticket, {code, std::move(what)});
    return false;
  };
  if (view_.view.v == 0)
    return refuse(ec::unavailable, "the group has not formed yet");
  if (regrouping_)
    return refuse(ec::unavailable, "the group is being started anew");
  if (order_.kind != order_kind::none)
    return refuse(ec::unavailable, fmt::format("another order is under way: {}", order_.words));
  order_ = std::move(o);
  return true;
}

result<void> keeper_core::may_leave(const kept& k) const {
  const auto least = std::max(1U, options_.members_min);
  const bool counts = k.state == kept_state::member || k.state == kept_state::draining;
  if (counts && living() <= least)
    return fail(ec::bad_argument,
                "{} ranks are in the group, at least {} must stay "
                "(supervisor.min_ep)",
                living(), least);
  const auto others = std::count_if(ranks_.begin(), ranks_.end(), [&](const auto& x) {
    return &x.second != &k && is_possible(x.second);
  });
  if (is_possible(k) && others < static_cast<std::ptrdiff_t>(least))
    return fail(ec::bad_argument,
                "{} other ranks are in the group or come back, at least {} must stay "
                "(supervisor.min_ep)",
                others, least);
  return {};
}

void keeper_core::on(const proto::scale_group& m, reply_to ticket, instant now, outbox& out) {
  const auto least = std::max(1U, options_.members_min);
  if (m.ranks < least || m.ranks > ranks_.size())
    return out.refuse(ticket,
                      {ec::bad_argument, fmt::format("{} ranks: the topology allows {} to {}",
                                                     m.ranks, least, ranks_.size())});
  order o{order_kind::scale, ticket, fmt::format("scale to {} ranks", m.ranks), m.ranks, {}, false};
  if (begin(std::move(o), out))
    proceed(now, out);
}

void keeper_core::on(const proto::drain_member& m, reply_to ticket, instant now, outbox& out) {
  auto* k = find(m.rank);
  if (!k)
    return out.refuse(ticket, {ec::not_found, fmt::format("no rank {} in the topology; there are "
                                                          "{}",
                                                          m.rank.v, ranks_.size())});
  if (const auto may = may_leave(*k); !may.ok())
    return out.refuse(ticket, may.error());
  order o{order_kind::drain, ticket, fmt::format("drain rank {}", m.rank.v), 0, {m.rank}, false};
  if (!begin(std::move(o), out))
    return;
  k->wanted = false;
  proceed(now, out);
}

void keeper_core::on(const proto::join_member& m, reply_to ticket, instant now, outbox& out) {
  auto* k = find(m.rank);
  if (!k)
    return out.refuse(ticket, {ec::not_found, fmt::format("no rank {} in the topology; there are "
                                                          "{}",
                                                          m.rank.v, ranks_.size())});
  if (k->state == kept_state::member)
    return out.refuse(ticket, {ec::bad_argument, fmt::format("rank {} is in the group (view {})",
                                                             m.rank.v, view_.view.v)});
  order o{order_kind::join, ticket, fmt::format("rejoin rank {}", m.rank.v), 0, {m.rank}, false};
  if (!begin(std::move(o), out))
    return;
  summon(*k, now, out);
  order_.begun = k->state == kept_state::waiting;
  proceed(now, out);
}

void keeper_core::on(const proto::upgrade_group& /*m*/, reply_to ticket, instant now, outbox& out) {
  order o{order_kind::upgrade, ticket, "upgrade", 0, {}, false};
  for (const auto& [rank, k] : ranks_)
    if (k.state == kept_state::member) {
      o.todo.push_back(rank);
      if (const auto may = may_leave(k); !may.ok())
        return out.refuse(ticket, may.error());
    }
  if (begin(std::move(o), out))
    proceed(now, out);
}

void keeper_core::on(const proto::kill_member& m, reply_to ticket, instant /*now*/, outbox& out) {
  auto* k = find(m.rank);
  if (!k || k->life.v == 0)
    return out.refuse(ticket, {ec::not_found, fmt::format("rank {} has no process", m.rank.v)});
  kill(*k, false, "killed by the operator", out);
  out.reply(ticket, proto::keeper_done{static_cast<std::uint32_t>(living()), view_.view});
}

void keeper_core::order_failed(ec code, std::string what, outbox& out) {
  out.refuse(order_.ticket, {code, fmt::format("{}: {}", order_.words, what)});
  order_ = {};
}

void keeper_core::order_done(outbox& out) {
  out.reply(order_.ticket, proto::keeper_done{static_cast<std::uint32_t>(living()), view_.view});
  order_ = {};
}

/// Brings a rank in now, on the operator's word.
void keeper_core::summon(kept& k, instant now, outbox& out) {
  k.wanted = true;
  k.credit = options_.restart_window;
  k.credit_at = now;
  k.deaths_in_row = 0;
  if (k.state == kept_state::absent || k.state == kept_state::waiting
      || k.state == kept_state::quarantined)
    rest(k, now, out);
}

void keeper_core::order_further(instant now, outbox& out) {
  switch (order_.kind) {
  case order_kind::none:
    return;
  case order_kind::scale:
    return scale_further(now, out);
  case order_kind::drain:
  case order_kind::join:
    return rank_order_further(now, out);
  case order_kind::upgrade:
    return upgrade_further(now, out);
  }
}

void keeper_core::scale_further(instant now, outbox& out) {
  std::uint32_t members = 0, coming = 0, going = 0;
  kept *highest = nullptr, *missing = nullptr;
  for (auto& [rank, k] : ranks_) {
    switch (k.state) {
    case kept_state::member:
      ++members;
      highest = &k;
      break;
    case kept_state::draining:
    case kept_state::leaving:
      ++going;
      break;
    case kept_state::absent:
    case kept_state::waiting:
      missing = missing ? missing : &k;
      break;
    case kept_state::quarantined:
      if (order_.begun && k.wanted
          && std::find(order_.todo.begin(), order_.todo.end(), rank) != order_.todo.end())
        return order_failed(ec::unavailable,
                            fmt::format("rank {} did not come: {}", rank.v, k.last_reason), out);
      missing = missing ? missing : &k;
      break;
    default:
      ++coming;
    }
  }
  if (going > 0)
    return; // one at a time
  if (members > order_.ranks) {
    highest->wanted = false;
    return drain(*highest, false, now, out);
  }
  if (members == order_.ranks && coming == 0) {
    for (auto& [rank, k] : ranks_)
      if (k.state != kept_state::member) {
        k.wanted = false; // from now on
        k.state = kept_state::absent;
      }
    return order_done(out);
  }
  if (members + coming < order_.ranks && missing && coming == 0) {
    order_.begun = true;
    if (std::find(order_.todo.begin(), order_.todo.end(), missing->home.rank) != order_.todo.end())
      return; // it waits for its next start
    order_.todo.push_back(missing->home.rank);
    summon(*missing, now, out);
  }
}

void keeper_core::rank_order_further(instant now, outbox& out) {
  auto& k = ranks_.at(order_.todo.front());
  if (order_.kind == order_kind::join) {
    if (k.state == kept_state::member)
      return order_done(out);
    if (k.state == kept_state::absent && !std::exchange(order_.begun, true))
      return summon(k, now, out); // it was on its way out
    if (k.state == kept_state::quarantined || k.state == kept_state::absent)
      order_failed(ec::unavailable, fmt::format("it did not come: {}", k.last_reason), out);
    return;
  }
  switch (k.state) {
  case kept_state::member:
    return drain(k, false, now, out);
  case kept_state::waiting:
  case kept_state::quarantined:
    k.state = kept_state::absent;
    return order_done(out);
  case kept_state::proving:
  case kept_state::admitting:
    return leave(k, now, out);
  case kept_state::absent:
    return order_done(out);
  default:
    return; // on its way out
  }
}

bool keeper_core::anyone_comes() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& x) {
    const auto s = x.second.state;
    return s == kept_state::waiting || s == kept_state::starting || s == kept_state::proving
           || s == kept_state::admitting || s == kept_state::fenced || s == kept_state::leaving;
  });
}

void keeper_core::upgrade_further(instant now, outbox& out) {
  while (!order_.todo.empty()) {
    auto& k = ranks_.at(order_.todo.front());
    if (!order_.begun) {
      if (k.state != kept_state::member) { // lost meanwhile: it is new already, or comes anew
        order_.todo.erase(order_.todo.begin());
        continue;
      }
      if (const auto may = may_leave(k); !may.ok()) {
        if (!anyone_comes())
          order_failed(may.error().code, may.error().what, out);
        return; // until others are back
      }
      order_.begun = true;
      return drain(k, true, now, out);
    }
    if (k.state == kept_state::quarantined || k.state == kept_state::absent)
      return order_failed(
          ec::unavailable,
          fmt::format("rank {} did not come back: {}", k.home.rank.v, k.last_reason), out);
    if (k.state != kept_state::member)
      return;
    order_.begun = false;
    order_.todo.erase(order_.todo.begin());
  }
  order_done(out);
}

} // namespace di::engine
