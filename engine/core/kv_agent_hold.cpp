// SPDX-License-Identifier: Apache-2.0
// KV_AGENT as a buddy: what is held for others, and until when.
#include "engine/core/kv_agent_core.hpp"
#include "engine/core/kv_agent_state.hpp"

namespace di::engine {

/// Whether a lease may hold anything here: ok, or why it is void.
ec kv_agent_core::fence(const proto::kv_lease& lease, epoch view) const {
  if (store_.is_over(lease))
    return ec::stale_epoch;
  if (view_ && view <= view_->view && !is_member(lease.owner, lease.life))
    return ec::stale_incarnation;
  return store_.newest_attempt(lease.request) > lease.attempt ? ec::stale_epoch : ec::ok;
}

/// A newer attempt holds pieces here: what older ones left waits for its end, not for ever.
void kv_agent_core::supersede(const proto::kv_lease& lease, instant now, outbox& out) {
  for (const proto::kv_lease& other : store_.leases_of(lease.request)) {
    if (other.attempt >= lease.attempt || store_.orphaned(other))
      continue;
    store_.set_orphaned(other, now + options_.orphan_after);
    want_tick(now + options_.orphan_after, now, out);
  }
}

void kv_agent_core::on(const proto::reserve_pages& m, instant now, outbox& out) {
  proto::pages_reserved answer{m.lease, options_.rank, options_.life, m.number, ec::ok, {}};
  answer.code = fence(m.lease, m.view);
  if (answer.code == ec::ok) {
    answer.verdicts = store_.reserve(m.lease, m.number, m.items);
    supersede(m.lease, now, out);
  } else {
    out.count("di_kv_agent_stale_total");
  }
  out.send(kv_agent_path(m.lease.owner), std::move(answer));
}

void kv_agent_core::on(const proto::push_pages& m, instant, outbox& out) {
  proto::pages_landed answer{m.lease, options_.rank, options_.life, m.number, {}};
  const std::uint64_t before = counts_.corrupt_items;
  answer.verdicts = store_.push(m.lease, m.number, m.items, m.bytes.bytes(), counts_.corrupt_items);
  if (counts_.corrupt_items > before)
    out.count("di_kv_agent_items_corrupt_total",
              static_cast<double>(counts_.corrupt_items - before));
  out.send(kv_agent_path(m.lease.owner), std::move(answer));
}

/// Leases whose owner is gone get their time; those whose time is over end.
void kv_agent_core::find_orphans(instant now, outbox& out) {
  for (const proto::kv_lease& lease : store_.leases()) {
    const bool lives = !view_ || is_member(lease.owner, lease.life);
    const bool current = store_.newest_attempt(lease.request) <= lease.attempt;
    auto ends = store_.orphaned(lease);
    if (lives && current)
      ends.reset(); // its view came later than its pieces
    else if (!ends)
      ends = now + options_.orphan_after;
    store_.set_orphaned(lease, ends);
    if (!ends)
      continue;
    if (*ends > now) {
      want_tick(*ends, now, out);
      continue;
    }
    ++counts_.expired_leases;
    out.count("di_kv_agent_leases_expired_total");
    store_.forget(lease);
  }
}

/// Asks for pieces by name: which are here, and as many of them as fit. Whoever asks claims the
/// request: its orphans get their whole time again.
void kv_agent_core::on(const proto::fetch_pages& m, instant now, outbox& out) {
  for (const proto::kv_lease& lease : store_.leases_of(m.request))
    if (lease.attempt < m.attempt && store_.orphaned(lease)) {
      store_.set_orphaned(lease, now + options_.orphan_after);
      want_tick(now + options_.orphan_after, now, out);
    }
  proto::pages_fetched answer;
  answer.ticket = m.ticket;
  answer.holder = options_.rank;
  answer.life = options_.life;
  std::vector<const kv_store::piece*> chosen;
  std::uint64_t bytes = 0;
  bool full = m.bytes_max == 0;
  for (const proto::kv_address& at : m.wanted) {
    const kv_store::piece* p = store_.find(at);
    answer.held.push_back(p == nullptr ? 0 : p->item.bytes);
    if (p == nullptr || full)
      continue;
    full = !chosen.empty() && bytes + p->item.bytes > m.bytes_max;
    if (full)
      continue;
    bytes += p->item.bytes;
    chosen.push_back(p);
    answer.items.push_back(p->item);
  }
  std::vector<std::byte> all;
  all.reserve(bytes);
  for (const kv_store::piece* p : chosen)
    all.insert(all.end(), p->bytes.begin(), p->bytes.end());
  answer.bytes = shared_bytes::adopt(std::move(all));
  out.send(kv_agent_path(m.asker), std::move(answer));
}

} // namespace di::engine
