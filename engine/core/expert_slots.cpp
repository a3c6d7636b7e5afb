// SPDX-License-Identifier: Apache-2.0
// Loading, holding and letting go of experts.
#include "engine/core/expert_slots.hpp"

#include <algorithm>

namespace di::engine {

std::vector<layer_expert> expert_slots::held_by(const placement& p) const {
  std::vector<layer_expert> all;
  const auto self = p.index_of(self_);
  if (!self)
    return all;
  for (const proto::placement_group& g : p.published().groups)
    for (std::uint32_t i = 0; i < g.layers; ++i) {
      const layer_id layer{g.first_layer + i};
      for (const std::uint32_t expert : p.held(*self, layer))
        if (expert != placement::empty_slot)
          all.push_back({layer, expert});
    }
  return all;
}

bool expert_slots::holds(layer_id layer, std::uint32_t expert) const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const auto& p) {
    const auto self = p->index_of(self_);
    return self && p->holds(*self, layer, expert);
  });
}

bool expert_slots::has(layer_id layer, std::uint32_t expert) const {
  const layer_expert e{layer, expert};
  if (draining_.contains(e) || holds(layer, expert))
    return true;
  const auto self = proposed_ ? proposed_->index_of(self_) : std::nullopt;
  return self && proposed_->holds(*self, layer, expert)
         && std::find(loads_.begin(), loads_.end(), e) == loads_.end();
}

void expert_slots::propose(std::shared_ptr<const placement> p) {
  if (current() && p->version() <= current()->version())
    return;
  if (proposed_ && p->version() <= proposed_->version()) {
    prepared_ = prepared_ || (p->version() == proposed_->version() && loads_.empty());
    return; // asked again: the answer was lost
  }
  const auto before = std::exchange(proposed_, std::move(p));
  loads_.clear();
  loaded_ = 0;
  if (before)
    let_go(*before); // it will never be installed
  for (const layer_expert& e : held_by(*proposed_))
    if (draining_.erase(e) == 0 && !holds(e.layer, e.expert))
      loads_.push_back(e);
  prepared_ = loads_.empty();
}

std::optional<layer_expert> expert_slots::next_load() const {
  return loads_.empty() ? std::nullopt : std::optional{loads_.front()};
}

void expert_slots::loaded() {
  DI_CHECK(!loads_.empty());
  loads_.pop_front();
  ++loaded_;
  prepared_ = loads_.empty();
}

std::optional<expert_slots::prepared> expert_slots::take_prepared() {
  if (!proposed_ || !std::exchange(prepared_, false))
    return std::nullopt;
  return prepared{proposed_->version(), loaded_};
}

bool expert_slots::install(std::shared_ptr<const placement> p) {
  if (current() && p->version() <= current()->version())
    return false;
  for (const layer_expert& e : held_by(*p))
    draining_.erase(e);
  kept_.push_back(std::move(p));
  if (proposed_ && proposed_->version() <= kept_.back()->version()) {
    const auto before = std::exchange(proposed_, nullptr);
    loads_.clear();
    prepared_ = false;
    let_go(*before);
  }
  while (kept_.size() > kept_max) {
    const auto oldest = kept_.front();
    kept_.erase(kept_.begin());
    let_go(*oldest);
  }
  return true;
}

void expert_slots::retire(epoch settled) {
  std::vector<std::shared_ptr<const placement>> old;
  while (kept_.size() > 1 && kept_.front()->version() < settled) {
    old.push_back(kept_.front());
    kept_.erase(kept_.begin());
  }
  for (const auto& p : old)
    let_go(*p);
}

/// What only this placement had here drains.
void expert_slots::let_go(const placement& p) {
  for (const layer_expert& e : held_by(p)) {
    const auto self = proposed_ ? proposed_->index_of(self_) : std::nullopt;
    if (!holds(e.layer, e.expert) && !(self && proposed_->holds(*self, e.layer, e.expert)))
      draining_.insert(e);
  }
}

} // namespace di::engine
