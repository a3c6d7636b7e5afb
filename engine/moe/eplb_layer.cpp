// SPDX-License-Identifier: Apache-2.0
// Copies of a layer's experts and their first packing on ranks.
#include "engine/moe/eplb_layer.hpp"

#include <algorithm>
#include <numeric>

namespace di::engine {

layer_balancer::layer_balancer(layer_shape shape)
    : shape_{std::move(shape)}, bins_{shape_.bins == 1 ? 1 : (shape_.bins + 3) / 4 * 4} {
  const std::size_t experts = shape_.experts, ranks = shape_.ranks;
  rows_.resize(experts * bins_);
  shares_.resize(experts * bins_);
  weights_.resize(experts);
  copies_.resize(experts);
  ranks_of_node_.resize(shape_.nodes);
  for (const std::uint32_t node : shape_.node_of_rank)
    ++ranks_of_node_[node];
  held_.resize(ranks * shape_.slots);
  filled_.resize(ranks);
  words_ = (ranks + 63) / 64;
  holders_.resize(experts * words_);
  loads_.resize(ranks * bins_);
  totals_.resize(ranks);
  trial_.resize(ranks * bins_);
  zero_.resize(bins_);
  peaks_.resize(bins_);
  tops_.resize(bins_);
}

void layer_balancer::set_rows(const float* rows, std::size_t stride) {
  for (std::uint32_t bin = 0; bin < shape_.bins; ++bin)
    for (std::uint32_t e = 0; e < shape_.experts; ++e)
      rows_[std::size_t{e} * bins_ + bin] = rows[bin * stride + e];
}

void layer_balancer::tie(std::span<const std::uint32_t> node_of_expert) {
  node_of_expert_.assign(node_of_expert.begin(), node_of_expert.end());
}

std::uint32_t layer_balancer::copies_max(std::uint32_t expert) const {
  return node_of_expert_.empty() ? shape_.ranks : ranks_of_node_[node_of_expert_[expert]];
}

void layer_balancer::set_copies(std::uint32_t expert, std::uint32_t copies) {
  copies_[expert] = copies;
  float weight = 0;
  for (std::uint32_t t = 0; t < bins_; ++t) {
    const std::size_t at = std::size_t{expert} * bins_ + t;
    shares_[at] = rows_[at] / static_cast<float>(copies);
    weight += shares_[at];
  }
  weights_[expert] = weight;
}

/// The expert whose further copy lowers the sum of the peaks per copy most; ties: the one with the
/// most rows per copy. `none` if all have a copy on every rank.
std::uint32_t layer_balancer::most_wanted(std::uint32_t node) const {
  const auto open = [&](std::uint32_t e) {
    return copies_[e] < copies_max(e) && (node_of_expert_.empty() || node_of_expert_[e] == node);
  };
  if (bins_ == 1) {
    std::uint32_t best = none;
    for (const std::uint32_t e : wanted_)
      if ((best == none || weights_[e] > weights_[best]
           || (weights_[e] == weights_[best] && copies_[e] < copies_[best]))
          && open(e))
        best = e;
    return best;
  }
  // Per bin, the highest and second highest share. Only the highest can lower anything.
  highest_.assign(bins_, none);
  first_.assign(bins_, -1);
  second_.assign(bins_, -1);
  std::uint32_t heaviest = none;
  for (const std::uint32_t e : wanted_) {
    if (!open(e))
      continue;
    if (heaviest == none || weights_[e] > weights_[heaviest]
        || (weights_[e] == weights_[heaviest] && copies_[e] < copies_[heaviest]))
      heaviest = e;
    const float* share = share_of(e);
    for (std::uint32_t t = 0; t < bins_; ++t)
      if (share[t] > first_[t]) {
        second_[t] = first_[t];
        first_[t] = share[t];
        highest_[t] = e;
      } else if (share[t] > second_[t]) {
        second_[t] = share[t];
      }
  }
  std::uint32_t best = heaviest;
  float best_gain = -1;
  for (std::uint32_t t = 0; t < bins_; ++t) {
    const std::uint32_t e = highest_[t];
    if (e == none)
      continue;
    float gain = 0;
    for (std::uint32_t u = 0; u < bins_; ++u)
      if (highest_[u] == e)
        gain += first_[u]
                - std::max(second_[u],
                           rows_[std::size_t{e} * bins_ + u] / static_cast<float>(copies_[e] + 1));
    if (gain > best_gain || (gain == best_gain && weights_[e] > weights_[best])) {
      best = e;
      best_gain = gain;
    }
  }
  return best;
}

/// Experts that may get one of `extra` copies: a copy goes to one with the most rows per copy in
/// some bin, or in all of them together; each copy takes at most one expert from the top.
void layer_balancer::find_wanted(std::uint32_t node, std::uint32_t extra) {
  wanted_.clear();
  for (std::uint32_t e = 0; e < shape_.experts; ++e)
    if (node_of_expert_.empty() || node_of_expert_[e] == node)
      wanted_.push_back(e);
  if (wanted_.size() < std::size_t{extra} * 2 + 2)
    return; // most of them
  std::vector<std::uint32_t> all(wanted_), highest;
  for (std::uint32_t t = 0; t <= bins_; ++t) {
    const auto rows = [&](std::uint32_t e) {
      return t == bins_ ? weights_[e] : shares_[std::size_t{e} * bins_ + t];
    };
    std::nth_element(all.begin(), all.begin() + extra, all.end(),
                     [&](std::uint32_t a, std::uint32_t b) {
                       return rows(a) != rows(b) ? rows(a) > rows(b) : a < b;
                     });
    highest.insert(highest.end(), all.begin(), all.begin() + extra + 1);
  }
  std::sort(highest.begin(), highest.end());
  highest.erase(std::unique(highest.begin(), highest.end()), highest.end());
  wanted_ = std::move(highest);
}

void layer_balancer::replicate_node(std::uint32_t node, std::uint32_t slots) {
  for (std::uint32_t e = 0; e < shape_.experts; ++e)
    if (node_of_expert_.empty() || node_of_expert_[e] == node) {
      set_copies(e, 1);
      --slots;
    }
  find_wanted(node, slots);
  for (; slots > 0; --slots) {
    const std::uint32_t e = most_wanted(node);
    if (e == none)
      return;
    set_copies(e, copies_[e] + 1);
  }
}

void layer_balancer::replicate() {
  if (node_of_expert_.empty())
    return replicate_node(0, shape_.ranks * shape_.slots);
  for (std::uint32_t node = 0; node < shape_.nodes; ++node)
    replicate_node(node, ranks_of_node_[node] * shape_.slots);
}

void layer_balancer::put(std::uint32_t rank, std::uint32_t slot, std::uint32_t expert) {
  std::uint32_t& at = held(rank, slot);
  if (at != none)
    set_holds(rank, at, false);
  const float* before = share_of(at);
  const float* after = share_of(expert);
  float* load = load_of(rank);
  for (std::uint32_t t = 0; t < bins_; ++t) {
    load[t] += after[t] - before[t];
    totals_[rank] += after[t] - before[t];
  }
  at = expert;
  if (expert != none)
    set_holds(rank, expert, true);
}

/// Loads from scratch, so that no rounding adds up.
void layer_balancer::recount() {
  std::fill(loads_.begin(), loads_.end(), 0.0F);
  for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    float* load = load_of(rank);
    for (std::uint32_t s = 0; s < shape_.slots; ++s) {
      const float* share = share_of(held(rank, s));
      for (std::uint32_t t = 0; t < bins_; ++t)
        load[t] += share[t];
    }
    totals_[rank] = std::accumulate(load, load + bins_, 0.0F);
  }
}

void layer_balancer::pack() {
  std::fill(held_.begin(), held_.end(), none);
  std::fill(filled_.begin(), filled_.end(), 0U);
  std::fill(holders_.begin(), holders_.end(), std::uint64_t{0});
  std::fill(loads_.begin(), loads_.end(), 0.0F);
  std::fill(totals_.begin(), totals_.end(), 0.0F);
  std::fill(peaks_.begin(), peaks_.end(), 0.0F);
  order_.resize(shape_.experts);
  std::iota(order_.begin(), order_.end(), 0U);
  std::sort(order_.begin(), order_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
  });
  std::vector<std::uint32_t> by_load(shape_.ranks); // those with a free slot, lightest first
  std::iota(by_load.begin(), by_load.end(), 0U);
  for (const std::uint32_t e : order_)
    for (std::uint32_t copy = 0; copy < copies_[e]; ++copy)
      place(e, by_load);
  recount();
}

/// Puts a copy on a light rank: of the lightest few, where it raises the peaks least.
void layer_balancer::place(std::uint32_t expert, std::vector<std::uint32_t>& by_load) {
  constexpr std::uint32_t looked_at_max = 8;
  const float* share = share_of(expert);
  std::size_t best = by_load.size();
  float best_rise = 0;
  std::uint32_t looked_at = 0;
  for (std::size_t i = 0; i < by_load.size() && looked_at < looked_at_max; ++i) {
    const std::uint32_t rank = by_load[i];
    if (holds(rank, expert) || !may_hold(rank, expert))
      continue;
    if (bins_ == 1) {
      best = i;
      break;
    }
    ++looked_at;
    float rise = 0;
    for (std::uint32_t t = 0; t < bins_; ++t)
      rise += std::max(peaks_[t], load_of(rank)[t] + share[t]) - peaks_[t];
    if (best == by_load.size() || rise < best_rise) {
      best = i;
      best_rise = rise;
    }
  }
  if (best == by_load.size())
    return make_room(expert, by_load);
  const std::uint32_t rank = by_load[best];
  put(rank, filled_[rank]++, expert);
  for (std::uint32_t t = 0; t < bins_; ++t)
    peaks_[t] = std::max(peaks_[t], load_of(rank)[t]);
  // It is heavier now, or full.
  auto at = by_load.begin() + static_cast<std::ptrdiff_t>(best);
  if (filled_[rank] == shape_.slots) {
    by_load.erase(at);
    return;
  }
  const auto lighter = [this](std::uint32_t a, std::uint32_t b) {
    return totals_[a] != totals_[b] ? totals_[a] < totals_[b] : a < b;
  };
  std::rotate(at, at + 1, std::lower_bound(at + 1, by_load.end(), rank, lighter));
}

/// Only ranks that hold the expert already have free slots: one of them takes an expert of a full
/// rank, which takes this one. A full rank has more experts than that one, so one it lacks.
void layer_balancer::make_room(std::uint32_t expert, std::vector<std::uint32_t>& by_load) {
  for (const std::uint32_t a : by_load) {
    if (!may_hold(a, expert))
      continue;
    std::uint32_t best = none, best_slot = 0;
    for (std::uint32_t b = 0; b < shape_.ranks; ++b) {
      if (holds(b, expert) || !may_hold(b, expert) || (best != none && totals_[b] >= totals_[best]))
        continue;
      for (std::uint32_t s = 0; s < filled_[b]; ++s)
        if (!holds(a, held(b, s))) {
          best = b;
          best_slot = s;
          break;
        }
    }
    if (best == none)
      continue;
    const std::uint32_t other = held(best, best_slot);
    put(best, best_slot, expert);
    put(a, filled_[a]++, other);
    std::erase_if(by_load, [this](std::uint32_t r) { return filled_[r] == shape_.slots; });
    std::sort(by_load.begin(), by_load.end(), [this](std::uint32_t x, std::uint32_t y) {
      return totals_[x] != totals_[y] ? totals_[x] < totals_[y] : x < y;
    });
    return;
  }
}

bool layer_balancer::adopt(std::span<const std::uint32_t> slots) {
  std::copy(slots.begin(), slots.end(), held_.begin());
  std::fill(holders_.begin(), holders_.end(), std::uint64_t{0});
  std::fill(copies_.begin(), copies_.end(), 0U);
  for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank)
    for (std::uint32_t s = 0; s < shape_.slots; ++s) {
      const std::uint32_t e = held(rank, s);
      if (e == none)
        continue;
      if (e >= shape_.experts || holds(rank, e))
        return false;
      set_holds(rank, e, true);
      ++copies_[e];
    }
  if (std::find(copies_.begin(), copies_.end(), 0U) != copies_.end())
    return false;
  for (std::uint32_t e = 0; e < shape_.experts; ++e)
    set_copies(e, copies_[e]);
  recount();
  return true;
}

} // namespace di::engine
