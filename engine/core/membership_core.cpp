// SPDX-License-Identifier: Apache-2.0
// Evidence, recording and commit of views; fencing by incarnation.
#include "engine/core/membership_core.hpp"

#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"

#include <algorithm>

namespace di::engine {
namespace {

constexpr std::size_t over_lives_max = 64; // per rank

} // namespace

membership_core::membership_core(membership_options options) : options_{std::move(options)} {
  if (options_.last_view)
    highest_ = planted("views_start_anew") ? epoch{} : options_.last_view->view;
}

void membership_core::on(const proto::group_formed& m, instant /*now*/, outbox& out) {
  if (view_ || recording_ != 0) {
    out.count("di_membership_stale_facts_total");
    return;
  }
  if (!planted("views_start_anew"))
    highest_ = std::max(highest_, m.view);
  std::vector<proto::view_member> members;
  for (const auto& p : m.processes)
    if (p.role == "rank" && !is_over(p.rank, p.life))
      members.push_back({p.rank, p.node, p.life, p.prefix});
  std::sort(members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (std::size_t i = 1; i < members.size(); ++i)
    if (members[i].rank == members[i - 1].rank)
      return out.fail(
          {ec::duplicate, fmt::format("rank {} is announced by {} and {}", members[i].rank.v,
                                      members[i - 1].prefix, members[i].prefix)});
  const auto was_in = [&](const proto::view_member& x) {
    const auto& before = options_.last_view->members;
    return std::any_of(before.begin(), before.end(),
                       [&](const auto& b) { return b.rank == x.rank && b.life == x.life; });
  };
  if (options_.last_view
      && (members.empty() || std::any_of(members.begin(), members.end(), was_in)))
    return resume(members, out);
  if (members.size() < options_.members_min)
    return out.fail({ec::bad_config, fmt::format("a group of {} ranks, at least {} are needed",
                                                 members.size(), options_.members_min)});
  record(std::move(members), out);
}

/// The first view of a control process that was started again. Lives that were not in the last view
/// were expelled or not yet admitted: KEEPER ends them.
void membership_core::resume(const std::vector<proto::view_member>& there, outbox& out) {
  reached("membership.resumes");
  view_ = options_.last_view;
  for (const auto& m : view_->members)
    if (std::none_of(there.begin(), there.end(),
                     [&](const auto& x) { return x.rank == m.rank && x.life == m.life; }))
      dead_.emplace(m.rank, loss{m.life, "it was gone when control started again"});
  std::vector<proto::view_member> members;
  for (auto& [rank, m] : planned())
    members.push_back(m);
  if (members.size() < options_.members_min || members.empty())
    members = view_->members; // until enough have come back
  record(std::move(members), out);
}

result<proto::view_committed> membership_core::on(const proto::get_view& /*m*/) const {
  if (!view_)
    return fail(ec::unavailable, "no view yet: processes are still starting");
  return *view_;
}

result<proto::member_confirmed> membership_core::on(const proto::check_member& m, instant /*now*/,
                                                    outbox& out) const {
  const auto* member = find(m.rank);
  if (member && member->life == m.life)
    return proto::member_confirmed{view_->view};
  out.count("di_membership_stale_questions_total");
  return fail(ec::stale_incarnation, "rank {} (life {:016x}) is not in view {}", m.rank.v, m.life.v,
              view_ ? view_->view.v : 0);
}

// --- evidence -----------------------------------------------------------------------------------

void membership_core::on(const proto::member_lost& m, instant /*now*/, outbox& out) {
  lose(m.rank, m.life, m.reason, out);
}

void membership_core::on(const proto::member_stuck& m, instant /*now*/, outbox& out) {
  out.count("di_membership_stuck_reports_total");
  reached("membership.hears_of_hang");
  lose(m.rank, m.life,
       fmt::format("stuck for {} ms in {}{}{}", m.stuck_ms, m.phase.empty() ? "?" : m.phase,
                   m.reason.empty() ? "" : ": ", m.reason),
       out);
}

void membership_core::on(const proto::member_suspected& m, instant /*now*/, outbox& out) {
  const auto* member = find(m.rank);
  out.count(member && member->life == m.life ? "di_membership_suspicions_total"
                                             : "di_membership_stale_facts_total");
}

void membership_core::lose(rank_id rank, incarnation life, std::string reason, outbox& out) {
  const auto is_it = [&](const proto::view_member& x) { return x.rank == rank && x.life == life; };
  const auto in = [&](const std::vector<proto::view_member>& x) {
    return std::any_of(x.begin(), x.end(), is_it);
  };
  // Who is in the view that is being written is a member already.
  if (!(view_ && in(view_->members)) && !(next_ && in(next_->members))) {
    const auto joiner = joining_.find(rank);
    const bool joins = joiner != joining_.end() && is_it(joiner->second);
    const bool replaces = replacing_ && in(*replacing_);
    const bool told = view_ && is_over(rank, life);
    retire(rank, life); // whoever wants to admit it comes too late
    out.count(joins || replaces ? "di_membership_joiners_lost_total"
                                : "di_membership_stale_facts_total");
    if (joins) { // the view stays as it is
      reached("membership.loses_joiner");
      joining_.erase(joiner);
    }
    if (replaces) // KEEPER names others
      replacing_.reset();
    if ((joins || replaces) && !options_.keeper.empty())
      out.send(options_.keeper, proto::member_lost{rank, life, reason});
    if (!told
        && !options_.directory.empty()) // or others that come would wait for its routes for ever
      out.send(options_.directory,
               proto::withdrawn{fmt::format("/rank/{}", rank.v), life, std::move(reason)});
    return;
  }
  const auto known = dead_.find(rank);
  if (known != dead_.end() && known->second.life == life) {
    out.count("di_membership_stale_facts_total");
    return;
  }
  out.count("di_membership_members_lost_total");
  const auto left =
      view_ ? view_->members.size() - std::min(view_->members.size(), dead_.size() + 1) : 0;
  if (options_.loss == on_loss::end
      || (options_.loss == on_loss::shrink && options_.keeper.empty()
          && left < options_.members_min))
    return out.fail(
        {ec::peer_lost, fmt::format("rank {} (life {:016x}) is lost: {}", rank.v, life.v, reason)});
  dead_[rank] = loss{life, std::move(reason)};
  if (recording_ != 0 || gathering_)
    return; // taken up when that is over
  if (options_.evidence_window <= duration{})
    return change(out);
  gathering_ = true;
  out.arm({gather_due, 0}, options_.evidence_window);
}

void membership_core::on_due(timer which, instant /*now*/, outbox& out) {
  if (which.kind != gather_due || !gathering_)
    return;
  gathering_ = false;
  if (recording_ == 0)
    change(out);
}

// --- orders of KEEPER ---------------------------------------------------------------------------

void membership_core::on(const proto::admit_member& m, instant /*now*/, outbox& out) {
  const auto& who = m.member;
  if (!view_ || is_over(who.rank, who.life)) {
    out.count("di_membership_stale_facts_total");
    if (view_ && !options_.keeper.empty()) // its process, if there is one, is to end
      out.send(options_.keeper, proto::member_lost{who.rank, who.life, "its life is over"});
    return;
  }
  const auto* member = find(who.rank);
  if (const auto waits = joining_.find(who.rank);
      (member && member->life == who.life) || (waits != joining_.end() && waits->second == who)) {
    out.count("di_membership_repeated_orders_total");
    return;
  }
  joining_[who.rank] = who;
  if (!gathering_ && recording_ == 0)
    change(out);
}

void membership_core::on(const proto::dismiss_member& m, instant /*now*/, outbox& out) {
  const auto* member = find(m.rank);
  if (!member || member->life != m.life) {
    out.count("di_membership_stale_facts_total");
    return;
  }
  dismissed_.insert(m.rank);
  if (!gathering_ && recording_ == 0)
    change(out);
}

void membership_core::on(const proto::replace_group& m, instant /*now*/, outbox& out) {
  bool stale = !view_ || m.members.empty() || view_->members == m.members;
  for (const auto& x : m.members)
    if (is_over(x.rank, x.life)) { // its process, if there is one, is to end
      stale = true;
      if (!options_.keeper.empty())
        out.send(options_.keeper, proto::member_lost{x.rank, x.life, "its life is over"});
    }
  if (stale) {
    out.count("di_membership_stale_facts_total");
    return;
  }
  replacing_ = m.members;
  std::sort(replacing_->begin(), replacing_->end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  if (!gathering_ && recording_ == 0)
    change(out);
}

// --- the next view ------------------------------------------------------------------------------

membership_core::member_map membership_core::planned() const {
  member_map next;
  if (replacing_) {
    for (const auto& m : *replacing_)
      next.emplace(m.rank, m);
    return next;
  }
  for (const auto& m : view_->members) {
    const auto lost = dead_.find(m.rank);
    const bool is_lost = lost != dead_.end() && lost->second.life == m.life;
    if (!dismissed_.contains(m.rank) && (!is_lost || options_.loss != on_loss::shrink))
      next.emplace(m.rank, m);
  }
  for (const auto& [rank, m] : joining_)
    next[rank] = m;
  return next;
}

/// Takes up all that has come: a new view, or only words about who is lost.
void membership_core::change(outbox& out) {
  if (!view_)
    return;
  std::vector<proto::view_member> members;
  for (auto& [rank, m] : planned())
    members.push_back(m);
  const bool same = members == view_->members;
  if (!same && members.size() >= options_.members_min && !members.empty())
    return record(std::move(members), out);
  if (!same)
    out.count("di_membership_views_held_total");
  tell_losses(out);
}

/// KEEPER hears of each loss once. Lives that stay in the view though they are over cannot be
/// reached any more: calls to them come back at once.
void membership_core::tell_losses(outbox& out) {
  for (auto& [rank, lost] : dead_) {
    if (std::exchange(lost.told, true))
      continue;
    if (!options_.keeper.empty())
      out.send(options_.keeper, proto::member_lost{rank, lost.life, lost.reason});
    const auto* m = find(rank);
    if (m && m->life == lost.life && !options_.directory.empty())
      out.send(options_.directory, proto::withdrawn{m->prefix, lost.life, lost.reason});
  }
}

void membership_core::record(std::vector<proto::view_member> members, outbox& out) {
  highest_ = epoch{highest_.v + 1};
  next_ = proto::view_committed{highest_, std::move(members)};
  if (options_.journal.empty())
    return commit(out);
  recording_ = ++last_tag_;
  out.request(options_.journal, proto::record_view{*next_}, recording_, options_.record_timeout);
}

void membership_core::on_answer(std::uint64_t tag, const result<parcel>& answer, instant /*now*/,
                                outbox& out) {
  if (tag != recording_ || recording_ == 0)
    return;
  recording_ = 0;
  const auto* written = answer ? answer->as<proto::view_recorded>() : nullptr;
  if (!written || written->view != next_->view)
    out.count("di_membership_views_unrecorded_total");
  commit(out);
  if (!gathering_)
    change(out); // what came while it was written
}

void membership_core::commit(outbox& out) {
  auto before = std::exchange(view_, std::exchange(next_, std::nullopt));
  out.count("di_membership_views_total");
  std::vector<proto::view_member> left;
  if (before)
    for (const auto& m : before->members)
      if (const auto* now_in = find(m.rank); !now_in || now_in->life != m.life) {
        left.push_back(m);
        retire(m.rank, m.life);
      }
  send_view(*view_, left, out);
  for (const auto& m : left) {
    const auto lost = dead_.find(m.rank);
    const bool is_lost = lost != dead_.end() && lost->second.life == m.life;
    if (is_lost && !lost->second.told && !options_.keeper.empty())
      out.send(options_.keeper, proto::member_lost{m.rank, m.life, lost->second.reason});
    const bool known = is_lost && lost->second.told; // withdrawn when it was lost
    if (!known && !options_.directory.empty())
      out.send(options_.directory,
               proto::withdrawn{m.prefix, m.life,
                                is_lost ? lost->second.reason
                                        : fmt::format("not in view {}", view_->view.v)});
    if (is_lost)
      dead_.erase(lost);
  }
  std::erase_if(dismissed_, [&](rank_id r) {
    return std::any_of(left.begin(), left.end(), [&](const auto& m) { return m.rank == r; });
  });
  std::erase_if(joining_, [&](const auto& x) {
    const auto* in = find(x.first);
    return in && in->life == x.second.life;
  });
  if (replacing_ && *replacing_ == view_->members)
    replacing_.reset();
  tell_losses(out);
}

void membership_core::send_view(const proto::view_committed& next,
                                const std::vector<proto::view_member>& left, outbox& out) const {
  const auto fact = parcel::of(next); // one body for all
  for (const auto& listener : options_.listeners)
    out.forward(listener, fact);
  for (const auto* group : {&next.members, &left})
    for (const auto& m : *group)
      for (const auto& part : options_.member_parts)
        out.forward(m.prefix + "/" + part, fact);
}

const proto::view_member* membership_core::find(rank_id rank) const {
  if (!view_)
    return nullptr;
  const auto found = std::find_if(view_->members.begin(), view_->members.end(),
                                  [&](const auto& x) { return x.rank == rank; });
  return found == view_->members.end() ? nullptr : &*found;
}

bool membership_core::is_over(rank_id rank, incarnation life) const {
  const auto lives = over_.find(rank);
  return lives != over_.end()
         && std::find(lives->second.begin(), lives->second.end(), life) != lives->second.end();
}

void membership_core::retire(rank_id rank, incarnation life) {
  auto& lives = over_[rank];
  if (!is_over(rank, life))
    lives.push_back(life);
  if (lives.size() > over_lives_max)
    lives.pop_front();
}

void membership_core::check() const {
  DI_CHECK((recording_ != 0) == (next_.has_value()));
  if (!view_)
    return;
  DI_CHECK(view_->view.v >= 1 && view_->view <= highest_);
  for (std::size_t i = 1; i < view_->members.size(); ++i)
    DI_CHECK(view_->members[i - 1].rank < view_->members[i].rank);
  // Lives that are over leave with the next view, or stay as dead ones (restart).
  for (const auto& m : view_->members)
    DI_CHECK(next_ || dead_.contains(m.rank) || !is_over(m.rank, m.life));
}

} // namespace di::engine
