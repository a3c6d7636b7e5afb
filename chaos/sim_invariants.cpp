// SPDX-License-Identifier: Apache-2.0
// Checks of single messages.
#include "chaos/sim_invariants.hpp"

#include "engine/moe/placement.hpp"
#include "messaging/proto/rank.hpp"

#include <algorithm>

namespace di::sim {

namespace {

std::size_t digest_of(const proto::placement_published& m) {
  std::size_t h = m.view.v;
  const auto add = [&h](std::size_t v) { h = (h ^ v) * 0x9E37'79B9'7F4A'7C15U + (h >> 31U); };
  for (std::size_t i = 0; i < m.ranks.size(); ++i) {
    add(m.ranks[i].v);
    add(m.lives[i].v);
  }
  for (const proto::placement_group& g : m.groups)
    for (const std::uint32_t e : g.expert_of_slot)
      add(e);
  return h;
}

} // namespace

void sim_invariants::broken(const char* name, std::string words) {
  world_.fail_run(fmt::format("{}: {}", name, words));
}

bool sim_invariants::is_member(incarnation life) const {
  return std::any_of(members_.begin(), members_.end(),
                     [life](const auto& m) { return m.second == life; });
}

void sim_invariants::on_mail(mail_event what, const sim_process& process, const address& self,
                             const envelope& mail) {
  if (what == mail_event::sent)
    return on_sent(process, mail);
  const auto* m = mail.body.as<proto::assign_request>();
  if (!m || what == mail_event::dropped)
    return;
  stale_ = {};
  const epoch* has = view_of ? view_of(process.life) : nullptr;
  const auto owner = owners_.find({m->spec.request, m->attempt});
  if (what == mail_event::received && has && m->view < *has
      && (owner == owners_.end() || owner->second != process.life))
    stale_ = {m->spec.request, m->attempt};
  (void)self;
}

void sim_invariants::on_sent(const sim_process& process, const envelope& mail) {
  const parcel& body = mail.body;
  const bool control = process.prefix == "/control";
  if (const auto* view = body.as<proto::view_committed>(); view && mail.kind == mail_kind::tell) {
    if (control && mail.from == "/control/membership")
      on_view(*view);
  } else if (const auto* placed = body.as<proto::placement_published>()) {
    on_placement(*placed);
  } else if (const auto* taken = body.as<proto::request_taken>()) {
    on_taken(*taken);
  } else if (const auto* admit = body.as<proto::admit_request>()) {
    std::uint32_t& newest = attempts_[admit->spec.request];
    newest = std::max(newest, admit->attempt);
  } else if (const auto* accepted = body.as<proto::commit_accepted>()) {
    if (accepted->attempt < attempts_[accepted->request])
      broken("I3",
             fmt::format("request {}: tokens of attempt {} are accepted after attempt {} was "
                         "opened",
                         accepted->request.v, accepted->attempt, attempts_[accepted->request]));
    check_written("JOURNAL accepts", accepted->request, accepted->choice, accepted->next_index);
  } else if (const auto* committed = body.as<proto::tokens_committed>()) {
    on_tokens("a rank", committed->request, committed->choice, committed->first_index,
              committed->tokens);
  } else if (const auto* released = body.as<proto::tokens_released>()) {
    on_tokens("JOURNAL", released->request, released->choice, released->first_index,
              released->tokens);
    std::uint32_t& have = released_[{released->request, released->choice}];
    if (released->first_index > have)
      broken("I1", fmt::format("request {} choice {}: released from index {}, before up to {}",
                               released->request.v, released->choice, released->first_index, have));
    const auto next = released->first_index + static_cast<std::uint32_t>(released->tokens.size());
    if (next > 0) // the end of what was cancelled before it was written is no secret
      check_written("JOURNAL releases", released->request, released->choice, next);
    have = std::max(have, next);
  } else if (const auto* opened = body.as<proto::request_opened>()) {
    check_written("JOURNAL says to be open", opened->request, 0, 0);
  }
}

void sim_invariants::check_written(const char* what, request_id request, std::uint32_t choice,
                                   std::uint32_t next) {
  if (is_written && !is_written(request, choice, next))
    broken("I17", fmt::format("{} request {} choice {} up to index {}, which is not on disk", what,
                              request.v, choice, next));
}

void sim_invariants::on_tokens(const char* who, request_id request, std::uint32_t choice,
                               std::uint32_t first, const std::vector<token_id>& tokens) {
  const std::vector<token_id>& wanted = reference_(request, choice);
  if (first + tokens.size() > wanted.size()
      || !std::equal(tokens.begin(), tokens.end(),
                     wanted.begin() + static_cast<std::ptrdiff_t>(first)))
    broken("I2", fmt::format("request {} choice {}: {} has other tokens than the reference in [{}, "
                             "{}) of {}",
                             request.v, choice, who, first, first + tokens.size(), wanted.size()));
}

void sim_invariants::on_taken(const proto::request_taken& m) {
  if (stale_ == std::pair{m.request, m.attempt})
    broken("I4", fmt::format("rank {} took request {} that was assigned under an older view",
                             m.rank.v, m.request.v));
  const auto at = owners_.emplace(std::pair{m.request, m.attempt}, m.life).first;
  const incarnation before = std::exchange(at->second, m.life);
  if (before != m.life && !gone_.contains(before) && !gone_.contains(m.life))
    broken("I3", fmt::format("request {} attempt {} has two owners: lives {:016x} and {:016x}",
                             m.request.v, m.attempt, before.v, m.life.v));
}

void sim_invariants::on_view(const proto::view_committed& m) {
  if (m.view == view_) {
    std::map<rank_id, incarnation> said;
    for (const proto::view_member& member : m.members)
      said[member.rank] = member.life;
    if (said != members_)
      broken("I8", fmt::format("view {} is sent in two forms, with {} and with {} members",
                               m.view.v, members_.size(), said.size()));
    return;
  }
  if (m.view < view_)
    return broken("I4", fmt::format("view {} is committed after view {}", m.view.v, view_.v));
  ++views_;
  std::map<rank_id, incarnation> next;
  for (const proto::view_member& member : m.members) {
    next[member.rank] = member.life;
    if (gone_.contains(member.life))
      broken("I12", fmt::format("life {:016x} of rank {} left an earlier view and is in view {}",
                                member.life.v, member.rank.v, m.view.v));
  }
  for (const auto& [rank, life] : members_)
    if (const auto at = next.find(rank); at == next.end() || at->second != life) {
      gone_.insert(life);
      if (!nodes_.may_leave(rank, life))
        broken("I13",
               fmt::format("view {} expels rank {} (life {:016x}), which nothing happened to",
                           m.view.v, rank.v, life.v));
    }
  for (const auto& [rank, life] : next)
    if (const auto at = members_.find(rank); at == members_.end() || at->second != life)
      ++joins_;
  view_ = m.view;
  members_ = std::move(next);
}

/// I6: every expert has a holder; I8: one version is one placement.
void sim_invariants::on_placement(const proto::placement_published& m) {
  const std::size_t digest = digest_of(m);
  const auto [at, fresh] = placements_.emplace(m.placement, digest);
  if (!fresh) {
    if (at->second != digest)
      broken("I8", fmt::format("placement {:#x} is published in two forms", m.placement.v));
    return;
  }
  if (const auto made = engine::placement::from(m); !made)
    broken("I6", fmt::format("placement {:#x}: {}", m.placement.v, made.error().render()));
  for (const incarnation life : m.lives)
    if (m.view >= view_ && gone_.contains(life))
      broken("I6", fmt::format("placement {:#x} gives experts to life {:016x}, which left",
                               m.placement.v, life.v));
}

} // namespace di::sim
