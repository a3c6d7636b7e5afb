// SPDX-License-Identifier: Apache-2.0
// Pieces, leases and fences of one holder.
#include "engine/core/kv_store.hpp"

#include "messaging/base/check.hpp"
#include "messaging/base/crc32c.hpp"

#include <array>

namespace di::engine {

using proto::kv_verdict;

std::uint32_t kv_checksum(const proto::kv_item& item, std::span<const std::byte> bytes) noexcept {
  const std::array<std::uint64_t, 3> name{item.at.low, item.at.high,
                                          std::uint64_t{item.end} << 8
                                              | static_cast<std::uint64_t>(item.kind)};
  return crc32c(bytes, crc32c(std::as_bytes(std::span{name})));
}

bool kv_store::is_over(const proto::kv_lease& lease) const {
  const auto at = over_.find(lease.request);
  return at != over_.end() && at->second >= lease.attempt;
}

/// The lease names a piece that is here. Of windows it keeps the longest of each choice only.
void kv_store::hold(held_lease& l, const proto::kv_item& item) {
  if (!l.pieces.insert(item.at).second)
    return;
  ++pieces_.at(item.at).references;
  if (item.kind != proto::kv_kind::windows)
    return;
  const auto before = l.windows.find(item.choice);
  if (before == l.windows.end()) {
    l.windows[item.choice] = item.at;
    return;
  }
  const proto::kv_address other = before->second;
  const bool longer = pieces_.at(other).what.item.end <= item.end;
  if (longer)
    before->second = item.at;
  drop(l, longer ? other : item.at);
}

/// @param at  a copy: what names it may lie in `l`
void kv_store::drop(held_lease& l, const proto::kv_address at) {
  if (l.pieces.erase(at) == 0)
    return;
  const auto p = pieces_.find(at);
  DI_CHECK(p != pieces_.end() && p->second.references > 0);
  if (--p->second.references > 0)
    return;
  held_ -= p->second.what.bytes.size();
  pieces_.erase(p);
}

void kv_store::void_reservation(held_lease& l) {
  for (const auto& [at, bytes] : l.open)
    reserved_ -= bytes;
  l.open.clear();
}

std::vector<kv_verdict> kv_store::reserve(const proto::kv_lease& key, std::uint64_t number,
                                          std::span<const proto::kv_item> items) {
  held_lease& l = leases_[key];
  const bool fresh = number > l.number;
  if (fresh) {
    void_reservation(l);
    l.number = number;
  }
  std::vector<kv_verdict> out;
  out.reserve(items.size());
  bool full = false; // behind a gap nothing is of use
  for (const proto::kv_item& item : items) {
    if (const auto known = pieces_.find(item.at); known != pieces_.end()) {
      hold(l, item); // under the choice of this lease
      out.push_back(kv_verdict::held);
    } else if (l.open.contains(item.at)) {
      out.push_back(kv_verdict::wanted);
    } else if (fresh && !full && item.bytes > 0 && held_ + reserved_ + item.bytes <= bytes_max_) {
      l.open[item.at] = item.bytes;
      reserved_ += item.bytes;
      out.push_back(kv_verdict::wanted);
    } else {
      full = true;
      out.push_back(kv_verdict::refused);
    }
  }
  return out;
}

std::vector<kv_verdict> kv_store::push(const proto::kv_lease& key, std::uint64_t number,
                                       std::span<const proto::kv_item> items,
                                       std::span<const std::byte> bytes, std::uint64_t& broken) {
  std::vector<kv_verdict> out(items.size(), kv_verdict::refused);
  const auto at = leases_.find(key);
  if (at == leases_.end() || number != at->second.number)
    return out;
  held_lease& l = at->second;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const proto::kv_item& item = items[i];
    if (item.bytes > bytes.size() - offset)
      break; // shorter than it says
    const auto part = bytes.subspan(offset, item.bytes);
    offset += item.bytes;
    if (const auto known = pieces_.find(item.at); known != pieces_.end()) {
      hold(l, item); // under the choice of this lease
      out[i] = kv_verdict::held;
    } else if (const auto room = l.open.find(item.at);
               room != l.open.end() && room->second == item.bytes) {
      if (kv_checksum(item, part) != item.crc) {
        ++broken;
        continue;
      }
      pieces_[item.at] = {{item, {part.begin(), part.end()}}, 0};
      held_ += item.bytes;
      hold(l, item);
      out[i] = kv_verdict::held;
    }
    if (const auto room = l.open.find(item.at);
        out[i] == kv_verdict::held && room != l.open.end()) {
      reserved_ -= room->second;
      l.open.erase(room);
    }
  }
  return out;
}

kv_store::lease_map::iterator kv_store::end_lease(lease_map::iterator at) {
  held_lease& l = at->second;
  void_reservation(l);
  while (!l.pieces.empty())
    drop(l, *l.pieces.begin());
  return leases_.erase(at);
}

void kv_store::fence(request_id request, std::uint32_t attempt) {
  const auto [at, fresh] = over_.try_emplace(request, attempt);
  at->second = std::max(at->second, attempt);
  if (!fresh)
    return;
  over_order_.push_back(request);
  if (over_order_.size() > fences_kept_) {
    over_.erase(over_order_.front());
    over_order_.pop_front();
  }
}

void kv_store::release(const proto::kv_lease& upto) {
  fence(upto.request, upto.attempt);
  auto at = leases_.lower_bound(proto::kv_lease{upto.request, 0, {}, {}});
  while (at != leases_.end() && at->first.request == upto.request
         && at->first.attempt <= upto.attempt)
    at = end_lease(at);
}

void kv_store::forget(const proto::kv_lease& lease) {
  if (const auto at = leases_.find(lease); at != leases_.end())
    end_lease(at);
}

const kv_store::piece* kv_store::find(const proto::kv_address& at) const {
  const auto p = pieces_.find(at);
  return p == pieces_.end() ? nullptr : &p->second.what;
}

std::vector<proto::kv_lease> kv_store::leases() const {
  std::vector<proto::kv_lease> all;
  all.reserve(leases_.size());
  for (const auto& [key, l] : leases_)
    all.push_back(key);
  return all;
}

std::vector<proto::kv_lease> kv_store::leases_of(request_id request) const {
  std::vector<proto::kv_lease> all;
  for (auto at = leases_.lower_bound(proto::kv_lease{request, 0, {}, {}});
       at != leases_.end() && at->first.request == request; ++at)
    all.push_back(at->first);
  return all;
}

std::uint32_t kv_store::newest_attempt(request_id request) const {
  const auto all = leases_of(request);
  return all.empty() ? 0 : all.back().attempt;
}

std::optional<instant> kv_store::orphaned(const proto::kv_lease& lease) const {
  return leases_.at(lease).orphan_ends;
}

void kv_store::set_orphaned(const proto::kv_lease& lease, std::optional<instant> ends) {
  leases_.at(lease).orphan_ends = ends;
}

void kv_store::check() const {
  std::uint64_t held = 0, reserved = 0;
  std::map<proto::kv_address, std::uint32_t> references;
  for (const auto& [key, l] : leases_) {
    DI_CHECK(!is_over(key));
    for (const auto& at : l.pieces)
      ++references[at];
    for (const auto& [at, bytes] : l.open)
      reserved += bytes;
  }
  DI_CHECK_EQ(references.size(), pieces_.size());
  for (const auto& [at, p] : pieces_) {
    DI_CHECK_EQ(p.references, references.at(at));
    held += p.what.bytes.size();
  }
  DI_CHECK_EQ(held, held_);
  DI_CHECK_EQ(reserved, reserved_);
  DI_CHECK(held_ + reserved_ <= bytes_max_);
  DI_CHECK_EQ(over_.size(), over_order_.size());
}

} // namespace di::engine
