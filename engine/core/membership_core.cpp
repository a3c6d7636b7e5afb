// SPDX-License-Identifier: Apache-2.0
// Commit of views and fencing by incarnation.
#include "engine/core/membership_core.hpp"

#include <algorithm>

namespace di::engine {

membership_core::membership_core(membership_options options) : options_{std::move(options)} {
}

void membership_core::on(const proto::group_formed& m, instant /*now*/, outbox& out) {
  if (view_) {
    out.count("di_membership_stale_facts_total");
    return;
  }
  std::vector<proto::view_member> members;
  for (const auto& p : m.processes)
    if (p.role == "rank")
      members.push_back({p.rank, p.node, p.life, p.prefix});
  std::sort(members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (std::size_t i = 1; i < members.size(); ++i)
    if (members[i].rank == members[i - 1].rank)
      return out.fail(
          {ec::duplicate, fmt::format("rank {} is announced by {} and {}", members[i].rank.v,
                                      members[i - 1].prefix, members[i].prefix)});
  if (members.size() < options_.members_min)
    return out.fail({ec::bad_config, fmt::format("a group of {} ranks, at least {} are needed",
                                                 members.size(), options_.members_min)});
  commit(std::move(members), out);
}

result<proto::view_committed> membership_core::on(const proto::get_view& /*m*/) const {
  if (!view_)
    return fail(ec::unavailable, "no view yet: processes are still starting");
  return *view_;
}

void membership_core::on(const proto::member_lost& m, instant /*now*/, outbox& out) {
  const auto* member = find(m.rank);
  if (!member || member->life != m.life) {
    out.count("di_membership_stale_facts_total");
    return;
  }
  out.count("di_membership_members_lost_total");
  if (options_.loss == on_loss::end || view_->members.size() <= options_.members_min)
    return out.fail({ec::peer_lost, fmt::format("rank {} (life {:016x}) is lost: {}", m.rank.v,
                                                m.life.v, m.reason)});
  auto members = view_->members;
  std::erase_if(members, [&](const auto& x) { return x.rank == m.rank; });
  commit(std::move(members), out);
}

void membership_core::on(const proto::member_suspected& m, instant /*now*/, outbox& out) {
  const auto* member = find(m.rank);
  out.count(member && member->life == m.life ? "di_membership_suspicions_total"
                                             : "di_membership_stale_facts_total");
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

const proto::view_member* membership_core::find(rank_id rank) const {
  if (!view_)
    return nullptr;
  const auto found = std::find_if(view_->members.begin(), view_->members.end(),
                                  [&](const auto& x) { return x.rank == rank; });
  return found == view_->members.end() ? nullptr : &*found;
}

void membership_core::commit(std::vector<proto::view_member> members, outbox& out) {
  view_ = proto::view_committed{epoch{view_ ? view_->view.v + 1 : 1}, std::move(members)};
  out.count("di_membership_views_total");
  const auto fact = parcel::of(*view_); // one body for all
  for (const auto& listener : options_.listeners)
    out.forward(listener, fact);
  for (const auto& member : view_->members)
    for (const auto& part : options_.member_parts)
      out.forward(member.prefix + "/" + part, fact);
}

void membership_core::check() const {
  if (!view_)
    return;
  DI_CHECK(view_->view.v >= 1);
  for (std::size_t i = 1; i < view_->members.size(); ++i)
    DI_CHECK(view_->members[i - 1].rank < view_->members[i].rank);
}

} // namespace di::engine
