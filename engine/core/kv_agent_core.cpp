// SPDX-License-Identifier: Apache-2.0
// KV_AGENT's view of the group, its clock and its invariants.
#include "engine/core/kv_agent_core.hpp"

#include "engine/core/kv_agent_state.hpp"
#include "messaging/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::engine {

namespace {

std::uint64_t mixed(std::uint64_t x) noexcept {
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
  x = (x ^ (x >> 29)) * 0xCF1BBCDCB7A56463ull;
  return x ^ (x >> 32);
}

/// Highest first: who keeps copies of the request.
std::uint64_t weight(request_id request, rank_id rank) noexcept {
  return mixed(mixed(request.v + 0x9E3779B97F4A7C15ull) ^ (std::uint64_t{rank.v} + 1));
}

std::vector<proto::view_member> ordered(const proto::view_committed& view, request_id request) {
  std::vector<proto::view_member> all = view.members;
  std::sort(all.begin(), all.end(), [request](const auto& a, const auto& b) {
    return std::pair{weight(request, a.rank), a.rank} > std::pair{weight(request, b.rank), b.rank};
  });
  return all;
}

} // namespace

address kv_agent_path(rank_id rank) {
  return fmt::format("/rank/{}/kv_agent", rank.v);
}

std::vector<proto::view_member> buddies_of(const proto::view_committed& view, request_id request,
                                           rank_id owner, std::uint32_t replicas) {
  std::vector<proto::view_member> all = ordered(view, request);
  const auto self =
      std::find_if(all.begin(), all.end(), [owner](const auto& m) { return m.rank == owner; });
  if (self == all.end())
    return {};
  const node_id home = self->node;
  all.erase(self);
  std::stable_partition(all.begin(), all.end(), [home](const auto& m) { return m.node != home; });
  all.resize(std::min<std::size_t>(all.size(), replicas));
  return all;
}

std::vector<proto::view_member> holders_of(const proto::view_committed& view, request_id request,
                                           rank_id asker, std::uint32_t replicas) {
  const std::vector<proto::view_member> all = ordered(view, request);
  std::set<node_id> nodes;
  for (const auto& m : all)
    nodes.insert(m.node);
  std::set<rank_id> chosen;
  const auto take = [&](const auto& fits) {
    std::uint32_t left = replicas + 1;
    for (const auto& m : all)
      if (left > 0 && fits(m)) {
        chosen.insert(m.rank);
        --left;
      }
  };
  take([](const auto&) { return true; });
  for (const node_id home : nodes)
    take([home](const auto& m) { return m.node != home; });
  std::vector<proto::view_member> out;
  for (const auto& m : all)
    if (chosen.contains(m.rank) && m.rank != asker)
      out.push_back(m);
  return out;
}

kv_agent_core::kv_agent_core(kv_agent_options options)
    : options_{options}, store_{options.held_bytes} {
  DI_CHECK(options_.sends_max > 0);
  counts_.rank = options_.rank;
  counts_.life = options_.life;
  fetch_rate_ = options_.fetch_rate;
}

kv_agent_core::~kv_agent_core() = default;

bool kv_agent_core::is_member(rank_id rank, incarnation life) const {
  return view_ && std::any_of(view_->members.begin(), view_->members.end(), [&](const auto& m) {
           return m.rank == rank && m.life == life;
         });
}

void kv_agent_core::on(const proto::view_committed& m, instant now, outbox& out) {
  if (view_ && m.view <= view_->view)
    return;
  view_ = m;
  const bool in = is_member(options_.rank, options_.life);
  for (auto at = channels_.begin(); at != channels_.end();)
    at = in && is_member(at->first.holder, at->second->life) ? std::next(at) : channels_.erase(at);
  find_orphans(now, out);
  std::vector<request_id> open;
  for (const auto& [id, r] : restores_)
    open.push_back(id);
  for (const request_id id : open) {
    restore& r = *restores_.at(id);
    for (holder& h : r.holders)
      h.failed = h.failed || !is_member(h.member.rank, h.member.life);
    go_on(r, now, out);
  }
  pump(now, out);
}

/// The earliest of all that is waited for is one timer.
void kv_agent_core::want_tick(instant due, instant now, outbox& out) {
  if (tick_at_ && *tick_at_ <= due)
    return;
  tick_at_ = due;
  out.arm({tick_due, 0}, std::max(due - now, duration{0}));
}

void kv_agent_core::on_due(timer which, instant now, outbox& out) {
  if (which.kind == pace_due) {
    pace_armed_ = false;
    return pump(now, out);
  }
  tick_at_.reset();
  std::vector<channel_key> late;
  std::optional<instant> next;
  const auto sooner = [&next](instant due) { next = next ? std::min(*next, due) : due; };
  for (const auto& [key, c] : channels_)
    if (!c->open.empty() || c->state == channel_state::releasing) {
      if (c->due <= now)
        late.push_back(key);
      else
        sooner(c->due);
    }
  for (const channel_key& key : late) {
    channel& c = *channels_.at(key);
    if (c.state != channel_state::releasing && c.sends >= options_.sends_max)
      cut(c);
    else
      send_open(c, now, out);
  }
  std::vector<request_id> open;
  for (const auto& [id, r] : restores_)
    open.push_back(id);
  for (const request_id id : open)
    restore_due(*restores_.at(id), now, out);
  find_orphans(now, out);
  if (next)
    want_tick(*next, now, out);
  pump(now, out);
}

result<proto::kv_agent_state> kv_agent_core::on(const proto::get_kv_agent&) const {
  proto::kv_agent_state s = counts_;
  s.view = view_ ? view_->view : epoch{};
  s.held_items = store_.items();
  s.held_bytes = store_.held_bytes();
  s.reserved_bytes = store_.reserved_bytes();
  s.leases = store_.lease_count();
  std::set<proto::kv_lease> owned;
  for (const auto& [key, c] : channels_)
    owned.insert(key.lease);
  s.owned = owned.size();
  s.queued_bytes = queued_bytes_;
  s.restores = restores_.size();
  return s;
}

bool kv_agent_core::is_empty() const {
  return store_.items() == 0 && store_.lease_count() == 0 && store_.reserved_bytes() == 0
         && channels_.empty() && queued_bytes_ == 0 && restores_.empty();
}

void kv_agent_core::check() const {
  store_.check();
  std::set<const piece*> pieces;
  for (const auto& [key, c] : channels_) {
    DI_CHECK(key.lease.owner == options_.rank && key.holder != options_.rank);
    DI_CHECK(c->open.empty()
             == (c->state != channel_state::asking && c->state != channel_state::pushing));
    DI_CHECK(c->queue.empty() || c->in_ready || !c->open.empty());
    for (const auto& p : c->queue)
      pieces.insert(p.get());
    for (const auto& p : c->open)
      pieces.insert(p.get());
  }
  std::uint64_t bytes = 0;
  for (const piece* p : pieces)
    bytes += p->item.bytes;
  DI_CHECK_EQ(bytes, queued_bytes_);
  DI_CHECK(queued_bytes_ <= options_.queued_bytes);
  for (const auto& [id, r] : restores_)
    DI_CHECK(r->what.request == id && r->state != restore_state::done);
}

} // namespace di::engine
