// SPDX-License-Identifier: Apache-2.0
// KV_AGENT as the owner's side: own pieces on their way to buddies.
#include "engine/core/kv_agent_core.hpp"
#include "engine/core/kv_agent_state.hpp"

#include <algorithm>
#include <cstring>

namespace di::engine {

namespace {

constexpr std::size_t batch_items_max = 512;

} // namespace

proto::kv_lease kv_agent_core::own_lease(request_id request, std::uint32_t attempt) const {
  return {request, attempt, options_.rank, options_.life};
}

kv_agent_core::channel& kv_agent_core::open_channel(const channel_key& key, incarnation life) {
  auto& c = channels_[key];
  if (!c) {
    c = std::make_unique<channel>();
    c->key = key;
    c->life = life;
  }
  return *c;
}

/// As many buddies as there shall be; those that are left keep it, whoever has joined since.
void kv_agent_core::open_buddies(const proto::kv_lease& lease) {
  std::uint32_t open = 0;
  for (auto at = channels_.lower_bound({lease, {}});
       at != channels_.end() && at->first.lease == lease; ++at)
    open += at->second->state != channel_state::cut;
  for (const auto& m : buddies_of(*view_, lease.request, options_.rank, options_.replicas)) {
    if (open >= options_.replicas)
      return;
    if (channels_.contains({lease, m.rank}))
      continue;
    open_channel({lease, m.rank}, m.life);
    ++open;
  }
}

void kv_agent_core::on(const proto::pages_sealed& m, instant now, outbox& out) {
  const proto::kv_lease lease = own_lease(m.request, m.attempt);
  if (options_.replicas == 0 || !is_member(options_.rank, options_.life) || store_.is_over(lease))
    return;
  open_buddies(lease);
  std::size_t offset = 0;
  for (const proto::kv_item& item : m.items) {
    if (item.bytes > m.bytes.size() - offset || item.bytes == 0)
      break;
    const std::byte* at = m.bytes.data() + offset;
    offset += item.bytes;
    if (queued_bytes_ + item.bytes > options_.queued_bytes) {
      ++counts_.dropped_items;
      out.count("di_kv_agent_items_dropped_total");
      continue;
    }
    const auto p = std::make_shared<const piece>(
        item, shared_bytes{m.bytes.owner(), at, item.bytes}, queued_bytes_);
    for (auto c = channels_.lower_bound({lease, {}});
         c != channels_.end() && c->first.lease == lease; ++c)
      queue(*c->second, p);
  }
  pump(now, out);
}

void kv_agent_core::queue(channel& c, const std::shared_ptr<const piece>& p) {
  if (c.state == channel_state::cut || c.state == channel_state::releasing || c.full
      || !c.given.insert(p->item.at).second)
    return;
  if (p->item.kind == proto::kv_kind::windows) // the newest ones do
    std::erase_if(c.queue, [&](const auto& q) {
      return q->item.kind == proto::kv_kind::windows && q->item.choice == p->item.choice;
    });
  c.queue.push_back(p);
  make_ready(c);
}

void kv_agent_core::make_ready(channel& c) {
  if (c.state != channel_state::idle || c.queue.empty() || std::exchange(c.in_ready, true))
    return;
  ready_.push_back(c.key);
}

/// This buddy gets no more of the lease; what it has stays until the release.
void kv_agent_core::cut(channel& c) {
  counts_.dropped_items += c.queue.size() + c.open.size();
  c.queue.clear();
  c.open.clear();
  c.state = channel_state::cut;
}

void kv_agent_core::refill(instant now) {
  const auto rate = static_cast<double>(options_.bandwidth);
  const double burst = std::max(rate * 0.02, static_cast<double>(options_.message_bytes));
  if (refilled_ != instant{})
    tokens_ += rate * std::chrono::duration<double>(now - refilled_).count();
  else
    tokens_ = burst;
  tokens_ = std::min(tokens_, burst);
  refilled_ = now;
}

/// Begins batches in turn, as long as the bandwidth lasts.
void kv_agent_core::pump(instant now, outbox& out) {
  refill(now);
  while (!ready_.empty() && (options_.bandwidth == 0 || tokens_ > 0)) {
    const auto at = channels_.find(ready_.front());
    ready_.pop_front();
    if (at == channels_.end())
      continue;
    channel& c = *at->second;
    if (!std::exchange(c.in_ready, false) || c.state != channel_state::idle || c.queue.empty())
      continue;
    begin_batch(c, now, out);
  }
  if (ready_.empty() || pace_armed_)
    return;
  pace_armed_ = true;
  const double wait_s = (1.0 - tokens_) / static_cast<double>(options_.bandwidth);
  out.arm({pace_due, 0}, std::max(duration{static_cast<std::int64_t>(wait_s * 1e9)},
                                  duration{std::chrono::milliseconds{1}}));
}

void kv_agent_core::begin_batch(channel& c, instant now, outbox& out) {
  std::uint64_t bytes = 0;
  while (!c.queue.empty() && c.open.size() < batch_items_max
         && (c.open.empty() || bytes + c.queue.front()->item.bytes <= options_.message_bytes)) {
    bytes += c.queue.front()->item.bytes;
    c.open.push_back(std::move(c.queue.front()));
    c.queue.pop_front();
  }
  tokens_ -= static_cast<double>(bytes);
  c.state = channel_state::asking;
  ++c.number;
  c.sends = 0;
  send_open(c, now, out);
}

/// Says what is open, for the first time or again.
void kv_agent_core::send_open(channel& c, instant now, outbox& out) {
  const address to = kv_agent_path(c.key.holder);
  ++c.sends;
  c.due = now + options_.resend_after * (1 << std::min(c.sends - 1, 4U));
  want_tick(c.due, now, out);
  if (c.state == channel_state::releasing)
    return out.send(to, proto::release_pages{c.key.lease});
  std::vector<proto::kv_item> items;
  std::uint64_t bytes = 0;
  bool joined = true; // they lie one behind the other already
  for (const auto& p : c.open) {
    joined = joined && p->bytes.owner() == c.open.front()->bytes.owner()
             && p->bytes.data() == c.open.front()->bytes.data() + bytes;
    items.push_back(p->item);
    bytes += p->item.bytes;
  }
  if (c.state == channel_state::asking)
    return out.send(to, proto::reserve_pages{c.key.lease, proto::kv_purpose::replica, view_->view,
                                             c.number, std::move(items)});
  shared_bytes all;
  if (joined) {
    all = {c.open.front()->bytes.owner(), c.open.front()->bytes.data(), bytes};
  } else {
    std::vector<std::byte> copy;
    copy.reserve(bytes);
    for (const auto& p : c.open)
      copy.insert(copy.end(), p->bytes.data(), p->bytes.data() + p->bytes.size());
    all = shared_bytes::adopt(std::move(copy));
  }
  counts_.pushed_bytes += bytes;
  out.count("di_kv_agent_pushed_bytes_total", static_cast<double>(bytes));
  out.send(to,
           proto::push_pages{c.key.lease, view_->view, c.number, std::move(items), std::move(all)});
}

void kv_agent_core::finish_batch(channel& c) {
  c.open.clear();
  c.state = channel_state::idle;
  if (c.full)
    cut(c);
  make_ready(c);
}

kv_agent_core::channel* kv_agent_core::answered(const proto::kv_lease& lease, rank_id by,
                                                incarnation life) {
  const auto at = channels_.find({lease, by});
  return at == channels_.end() || at->second->life != life ? nullptr : at->second.get();
}

void kv_agent_core::on(const proto::pages_reserved& m, instant now, outbox& out) {
  channel* c = answered(m.lease, m.holder, m.life);
  if (c == nullptr) {
    if (m.code == ec::ok && m.lease.life == options_.life) // nobody will release it otherwise
      out.send(kv_agent_path(m.holder), proto::release_pages{m.lease});
    return;
  }
  if (c->state != channel_state::asking || m.number != c->number)
    return;
  if (m.code != ec::ok || m.verdicts.size() != c->open.size()) {
    cut(*c);
    return;
  }
  std::vector<std::shared_ptr<const piece>> wanted;
  for (std::size_t i = 0; i < c->open.size(); ++i) {
    if (m.verdicts[i] == proto::kv_verdict::wanted)
      wanted.push_back(std::move(c->open[i]));
    else
      tokens_ += c->open[i]->item.bytes; // needs no bandwidth after all
    c->full = c->full || m.verdicts[i] == proto::kv_verdict::refused;
  }
  c->open = std::move(wanted);
  if (c->open.empty()) {
    finish_batch(*c);
  } else {
    c->state = channel_state::pushing;
    c->sends = 0;
    send_open(*c, now, out);
  }
  pump(now, out);
}

void kv_agent_core::on(const proto::pages_landed& m, instant now, outbox& out) {
  channel* c = answered(m.lease, m.holder, m.life);
  if (c == nullptr || c->state != channel_state::pushing || m.number != c->number
      || m.verdicts.size() != c->open.size())
    return;
  std::vector<std::shared_ptr<const piece>> again;
  for (std::size_t i = 0; i < c->open.size(); ++i)
    if (m.verdicts[i] != proto::kv_verdict::held)
      again.push_back(std::move(c->open[i]));
  c->open = std::move(again);
  if (c->open.empty())
    finish_batch(*c);
  else if (c->sends >= options_.sends_max)
    cut(*c);
  else
    send_open(*c, now, out);
  pump(now, out);
}

/// RANK's word about an own attempt, or an owner's about what is held for it here.
void kv_agent_core::on(const proto::release_pages& m, instant now, outbox& out) {
  store_.release(m.lease);
  if (m.lease.owner != options_.rank || m.lease.life != options_.life) {
    out.send(kv_agent_path(m.lease.owner),
             proto::pages_released{m.lease, options_.rank, options_.life});
    return;
  }
  if (const auto r = restores_.find(m.lease.request);
      r != restores_.end() && r->second->what.attempt <= m.lease.attempt)
    restores_.erase(r);
  for (auto at = channels_.lower_bound({proto::kv_lease{m.lease.request, 0, {}, {}}, {}});
       at != channels_.end() && at->first.lease.request == m.lease.request
       && at->first.lease.attempt <= m.lease.attempt;
       ++at)
    release_channel(*at->second, now, out);
  pump(now, out);
}

void kv_agent_core::release_channel(channel& c, instant now, outbox& out) {
  if (c.state == channel_state::releasing)
    return;
  c.queue.clear();
  c.open.clear();
  c.state = channel_state::releasing;
  c.sends = 0;
  send_open(c, now, out);
}

void kv_agent_core::on(const proto::pages_released& m, instant, outbox&) {
  if (const channel* c = answered(m.lease, m.holder, m.life);
      c != nullptr && c->state == channel_state::releasing)
    channels_.erase(c->key);
}

} // namespace di::engine
