// SPDX-License-Identifier: Apache-2.0
// Grouping the rows of a layer by holder, and following them until each is answered once.
#include "engine/core/expert_call_core.hpp"

#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"

#include <algorithm>

namespace di::engine {

void expert_call_core::install(std::shared_ptr<const placement> p) {
  if (placement_ && p->version() <= placement_->version())
    return;
  placement_ = std::move(p);
  moved_.clear();
  std::erase_if(dead_, [this](const auto& who) { // nobody would ask those any more
    const auto at = placement_->index_of(who.first);
    return !at || placement_->rank_at(*at).life != who.second;
  });
  route(std::exchange(parked_, {}));
}

result<void> expert_call_core::begin(const layer_demand& demand) {
  DI_CHECK(complete());
  DI_CHECK(placement_ != nullptr);
  const std::uint32_t experts = placement_->experts(demand.layer);
  layer_ = demand.layer;
  const std::size_t answer_bytes = std::size_t{2} * std::max(demand.hidden, 1U); // of an entry
  call_entries_max_ = std::max<std::size_t>(options_.answer_bytes_max / answer_bytes, 1);
  std::vector<call_entry> entries;
  entries.reserve(demand.experts.size());
  for (std::uint32_t slot = 0; slot < demand.experts.size(); ++slot) {
    const std::int32_t expert = demand.experts[slot];
    if (expert < 0 || static_cast<std::uint32_t>(expert) >= experts)
      return fail(ec::bad_argument, "layer {} routes to expert {}, the placement has {}",
                  demand.layer.v, expert, experts);
    entries.push_back({slot / demand.experts_per_token, static_cast<std::uint32_t>(expert), slot});
  }
  entries_total_ = entries.size();
  entries_done_ = 0;
  load_.add(demand.layer, experts, demand.experts);
  route(std::move(entries));
  return {};
}

/// Rows of an expert that were sent before, over all steps.
std::uint64_t expert_call_core::take_turn(std::uint32_t expert) {
  if (turns_.size() <= layer_.v)
    turns_.resize(layer_.v + 1);
  auto& of_layer = turns_[layer_.v];
  if (of_layer.size() <= expert)
    of_layer.resize(placement_->experts(layer_));
  return of_layer[expert]++;
}

/// Whose turn it is, or the next after it that lives and holds the expert; none if nobody does.
std::optional<std::size_t> expert_call_core::target_of(std::size_t self, const call_entry& entry) {
  const auto refuses = [this](std::size_t index) {
    const placed_rank r = placement_->rank_at(index);
    return dead_.contains({r.rank, r.life}) || moved_.contains({r.rank, r.life});
  };
  const std::size_t first =
      placement_->serving(self, layer_, entry.expert, take_turn(entry.expert));
  if (!refuses(first))
    return first;
  const auto holders = placement_->holders(layer_, entry.expert);
  const auto at = static_cast<std::size_t>(std::lower_bound(holders.begin(), holders.end(), first)
                                           - holders.begin());
  for (std::size_t i = 1; i < holders.size(); ++i)
    if (const std::size_t next = holders[(at + i) % holders.size()]; !refuses(next))
      return next;
  return std::nullopt;
}

/// Spreads entries over new calls, one per holder unless that is too large for one; parks those
/// that nobody alive holds.
void expert_call_core::route(std::vector<call_entry> entries) {
  if (entries.empty())
    return;
  // Parked ones come from several calls; a call's rows and entries ascend.
  if (!planted("unordered_rows"))
    std::sort(entries.begin(), entries.end(),
              [](const call_entry& a, const call_entry& b) { return a.slot < b.slot; });
  const std::size_t self = placement_->index_of(self_).value_or(0);
  std::map<std::size_t, std::vector<std::unique_ptr<expert_call>>> by_target;
  for (const call_entry& entry : entries) {
    const auto found = target_of(self, entry);
    if (!found) {
      reached("calls.parked");
      parked_.push_back(entry);
      continue;
    }
    const std::size_t target = *found;
    auto& calls = by_target[target];
    if (calls.empty() || calls.back()->entries.size() == call_entries_max_) {
      auto call = std::make_unique<expert_call>();
      call->id = call_id{next_call_++};
      call->target = target;
      call->holder = placement_->rank_at(target);
      call->placement = placement_->version();
      call->layer = layer_;
      call->local = call->holder.rank == self_;
      calls.push_back(std::move(call));
    }
    expert_call& call = *calls.back();
    if (call.rows.empty() || call.rows.back() != entry.row)
      call.rows.push_back(entry.row);
    call.entries.push_back(entry);
  }
  for (auto& [target, calls] : by_target)
    for (auto& call : calls) {
      unsent_.push_back(call->id);
      open_.emplace(call->id, std::move(call));
    }
}

std::vector<const expert_call*> expert_call_core::take_unsent(instant now) {
  std::vector<const expert_call*> calls;
  for (const call_id id : std::exchange(unsent_, {}))
    if (const auto at = open_.find(id); at != open_.end()) {
      if (at->second->first_sent == instant{})
        at->second->first_sent = now;
      at->second->sent = now;
      calls.push_back(at->second.get());
    }
  return calls;
}

std::unique_ptr<expert_call> expert_call_core::close(call_id id) {
  const auto at = open_.find(id);
  if (at == open_.end())
    return nullptr;
  auto call = std::move(at->second);
  open_.erase(at);
  return call;
}

std::unique_ptr<expert_call> expert_call_core::answered(call_id id, std::size_t entries) {
  const auto at = open_.find(id);
  if (at == open_.end() || at->second->entries.size() != entries)
    return nullptr;
  entries_done_ += entries;
  return close(id);
}

void expert_call_core::moved(const proto::expert_moved& m) {
  auto call = close(m.call);
  if (!call)
    return;
  // Whoever refuses is not asked again before a newer placement says what it holds; one that is
  // newer than the call has said so already.
  if (call->placement == placement_->version())
    moved_.insert({call->holder.rank, call->holder.life});
  route(std::move(call->entries));
}

void expert_call_core::lost(rank_id rank, incarnation life) {
  dead_.insert({rank, life});
  std::vector<call_entry> orphans;
  for (auto at = open_.begin(); at != open_.end();) {
    if (at->second->holder == placed_rank{rank, life}) {
      reached("calls.lost_holder");
      orphans.insert(orphans.end(), at->second->entries.begin(), at->second->entries.end());
      at = open_.erase(at);
    } else {
      ++at;
    }
  }
  if (!planted("forgotten_resend"))
    route(std::move(orphans)); // none without a placement
}

void expert_call_core::keep_only(std::span<const placed_rank> alive) {
  std::set<std::pair<rank_id, incarnation>> gone;
  const auto look_at = [&](const placed_rank& r) {
    if (std::find(alive.begin(), alive.end(), r) == alive.end())
      gone.insert({r.rank, r.life});
  };
  for (std::size_t i = 0; placement_ && i < placement_->ranks(); ++i)
    look_at(placement_->rank_at(i));
  for (const auto& [id, call] : open_)
    look_at(call->holder);
  for (const auto& [rank, life] : gone)
    if (!dead_.contains({rank, life}))
      lost(rank, life);
}

void expert_call_core::forgotten(call_id id) {
  if (open_.contains(id) && std::find(unsent_.begin(), unsent_.end(), id) == unsent_.end()) {
    reached("calls.sent_again");
    unsent_.push_back(id);
  }
}

std::set<call_id> expert_call_core::local_open() const {
  std::set<call_id> calls;
  for (const auto& [id, call] : open_)
    if (call->local)
      calls.insert(id);
  return calls;
}

epoch expert_call_core::settled() const noexcept {
  epoch oldest = placement_ ? placement_->version() : epoch{};
  for (const auto& [id, call] : open_)
    oldest = std::min(oldest, call->placement);
  return oldest;
}

std::optional<proto::expert_load> expert_call_core::end_step() {
  auto full = load_.end_step();
  if (full) {
    full->rank = self_;
    full->life = options_.life;
    full->placement = placement_ ? placement_->version() : epoch{};
  }
  return full;
}

void expert_call_core::abandon() {
  open_.clear();
  unsent_.clear();
  parked_.clear();
  entries_total_ = entries_done_ = 0;
}

std::vector<const expert_call*> expert_call_core::take_late(instant now) {
  std::vector<const expert_call*> late;
  for (auto& [id, call] : open_)
    if (now - call->sent >= options_.ask_after) {
      call->sent = now;
      late.push_back(call.get());
    }
  return late;
}

void expert_call_core::check() const {
  std::size_t open = 0;
  std::set<std::uint32_t> slots;
  const auto add = [&slots](const call_entry& e) { DI_CHECK(slots.insert(e.slot).second); };
  for (const auto& [id, call] : open_) {
    open += call->entries.size();
    DI_CHECK(!(dead_.contains({call->holder.rank, call->holder.life})));
    for (std::size_t i = 0; i < call->entries.size(); ++i) {
      add(call->entries[i]);
      DI_CHECK(i == 0 || call->entries[i - 1].slot < call->entries[i].slot);
    }
  }
  for (const call_entry& e : parked_)
    add(e);
  DI_CHECK_EQ(open + parked_.size() + entries_done_, entries_total_);
}

} // namespace di::engine
