// SPDX-License-Identifier: Apache-2.0
// Plans over all layers: from nothing, or as the best few moves from a placement.
#include "engine/moe/eplb.hpp"

#include "engine/moe/eplb_layer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>

namespace di::engine {

namespace {

constexpr std::uint32_t layers_max = 4'096, ranks_max = 65'536, experts_max = 65'536;
constexpr std::uint32_t rounds_from_nothing = 40, rounds_from_current = 64, rounds_of_shake = 12;
constexpr double layer_gain_min = 1e-3; // [share of the layer's peak] that a move must bring

result<void> checked(const load_view& load, const eplb_shape& shape,
                     std::span<const std::uint32_t> current) {
  if (shape.ranks == 0 || shape.ranks > ranks_max || load.layers == 0 || load.layers > layers_max
      || load.experts == 0 || load.experts > experts_max || load.bins == 0)
    return fail(ec::bad_argument, "{} layers of {} experts over {} bins on {} ranks", load.layers,
                load.experts, load.bins, shape.ranks);
  if (load.rows.size() != std::size_t{load.bins} * load.layers * load.experts)
    return fail(ec::bad_shape, "{} loads for {} bins, {} layers and {} experts", load.rows.size(),
                load.bins, load.layers, load.experts);
  if (shape.slots == 0 || shape.slots > load.experts
      || std::uint64_t{shape.slots} * shape.ranks < load.experts)
    return fail(ec::limit_exceeded, "{} experts do not fit in {} slots on each of {} ranks",
                load.experts, shape.slots, shape.ranks);
  if (!shape.node_of_rank.empty() && shape.node_of_rank.size() != shape.ranks)
    return fail(ec::bad_shape, "{} nodes named for {} ranks", shape.node_of_rank.size(),
                shape.ranks);
  if (shape.groups == 0 || load.experts % shape.groups != 0)
    return fail(ec::bad_argument, "{} experts do not split in {} groups", load.experts,
                shape.groups);
  if (!current.empty() && current.size() != std::size_t{load.layers} * shape.ranks * shape.slots)
    return fail(ec::bad_shape, "{} slots now, expected {} layers of {} ranks with {}",
                current.size(), load.layers, shape.ranks, shape.slots);
  for (const float rows : load.rows)
    if (!(rows >= 0) || std::isinf(rows))
      return fail(ec::bad_argument, "a load of {} rows", rows);
  return {};
}

/// Groups on nodes, heaviest first, each on the node with the fewest rows per rank.
class group_packer {
public:
  group_packer(const eplb_shape& shape, const layer_shape& layer)
      : group_size_{layer.experts / shape.groups}, groups_{shape.groups}, nodes_{layer.nodes} {
    std::vector<std::uint32_t> ranks(nodes_);
    for (const std::uint32_t node : layer.node_of_rank)
      ++ranks[node];
    for (const std::uint32_t n : ranks) {
      const std::uint32_t fit = n * shape.slots / group_size_;
      const std::uint32_t even = (groups_ * n + shape.ranks - 1) / shape.ranks;
      room_.push_back(std::min(fit, even));
      ranks_.push_back(static_cast<double>(n));
    }
  }
  bool possible() const {
    return nodes_ > 1 && std::accumulate(room_.begin(), room_.end(), 0U) >= groups_;
  }
  /// @param rows  rows[expert] of a layer  @return node of each expert
  std::vector<std::uint32_t> nodes(const std::vector<double>& rows) const {
    std::vector<double> weight(groups_), load(nodes_);
    for (std::size_t e = 0; e < rows.size(); ++e)
      weight[e / group_size_] += rows[e];
    std::vector<std::uint32_t> order(groups_), room = room_;
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return weight[a] > weight[b]; });
    std::vector<std::uint32_t> node_of(rows.size());
    for (const std::uint32_t g : order) {
      std::uint32_t best = nodes_;
      for (std::uint32_t n = 0; n < nodes_; ++n)
        if (room[n] > 0 && (best == nodes_ || load[n] / ranks_[n] < load[best] / ranks_[best]))
          best = n;
      --room[best];
      load[best] += weight[g];
      std::fill_n(node_of.begin() + std::ptrdiff_t{g} * group_size_, group_size_, best);
    }
    return node_of;
  }

private:
  std::uint32_t group_size_, groups_, nodes_;
  std::vector<std::uint32_t> room_; ///< [nodes] groups
  std::vector<double> ranks_;       ///< [nodes]
};

layer_shape shape_of_layer(const load_view& load, const eplb_shape& shape) {
  layer_shape s{load.experts, shape.ranks, shape.slots, load.bins, shape.node_of_rank, 1};
  s.node_of_rank.resize(shape.ranks);
  s.nodes = 1 + *std::max_element(s.node_of_rank.begin(), s.node_of_rank.end());
  return s;
}

/// Node of each expert of a layer; empty: free.
std::vector<std::uint32_t> ties(const group_packer& groups, const load_view& load,
                                std::uint32_t layer) {
  if (!groups.possible())
    return {};
  std::vector<double> rows(load.experts);
  for (std::uint32_t bin = 0; bin < load.bins; ++bin)
    for (std::uint32_t e = 0; e < load.experts; ++e)
      rows[e] += static_cast<double>(
          load.rows[(std::size_t{bin} * load.layers + layer) * load.experts + e]);
  return groups.nodes(rows);
}

/// Experts of a rank that it holds now stay where they are; the others fill what is left.
std::uint32_t keep_in_place(std::span<std::uint32_t> wanted, std::span<const std::uint32_t> now) {
  std::vector<std::uint32_t> incoming;
  for (const std::uint32_t e : wanted)
    if (e != layer_balancer::none && std::find(now.begin(), now.end(), e) == now.end())
      incoming.push_back(e);
  const auto moves = static_cast<std::uint32_t>(incoming.size());
  std::vector<std::uint32_t> placed(now.begin(), now.end());
  for (std::uint32_t& e : placed)
    if (std::find(wanted.begin(), wanted.end(), e) == wanted.end())
      e = layer_balancer::none;
  for (std::uint32_t& e : placed)
    if (e == layer_balancer::none && !incoming.empty()) {
      e = incoming.front();
      incoming.erase(incoming.begin());
    }
  std::copy(placed.begin(), placed.end(), wanted.begin());
  return moves;
}

/// Few slots are hard to get even and cheap to try; many come out even.
std::uint32_t shakes(const load_view& load, std::size_t slots) {
  const std::size_t times = 98'304 / (slots * load.layers * load.bins);
  return times < 8 ? 0 : static_cast<std::uint32_t>(std::min<std::size_t>(times, 32));
}

/// Another start for a layer: the published algorithm's slots, where a rank lets go of second
/// copies of an expert. Empty where it cannot be used.
std::vector<std::uint32_t> published_start(const load_view& load, const eplb_shape& shape,
                                           std::uint32_t layer, std::uint32_t nodes) {
  std::vector<float> rows(load.experts);
  for (std::uint32_t bin = 0; bin < load.bins; ++bin)
    for (std::uint32_t e = 0; e < load.experts; ++e)
      rows[e] += load.rows[(std::size_t{bin} * load.layers + layer) * load.experts + e];
  auto slots = plan_experts_published(rows, 1, shape.ranks * shape.slots,
                                      nodes == 1 ? 1 : shape.groups, nodes, shape.ranks);
  if (!slots)
    return {};
  for (std::size_t s = 0; s < slots->size(); ++s) {
    const auto rank = slots->begin() + static_cast<std::ptrdiff_t>(s / shape.slots * shape.slots);
    const auto here = slots->begin() + static_cast<std::ptrdiff_t>(s);
    if (std::find(rank, here, *here) != here)
      *here = layer_balancer::none;
  }
  return std::move(*slots);
}

/// All layers from nothing.
void plan_from_nothing(const load_view& load, const eplb_shape& shape, eplb_plan& plan) {
  const layer_shape of_layer = shape_of_layer(load, shape);
  const group_packer groups{shape, of_layer};
  layer_balancer one{of_layer};
  const std::size_t size = std::size_t{shape.ranks} * shape.slots;
  const std::uint32_t times = shakes(load, size);
  for (std::uint32_t layer = 0; layer < load.layers; ++layer) {
    const auto out = plan.expert_of_slot.begin() + static_cast<std::ptrdiff_t>(layer * size);
    double peak = 0;
    const auto finish = [&](bool first) {
      one.improve(rounds_from_nothing, ~0U, 0, true, nullptr);
      one.shake(times, rounds_of_shake);
      if (first || one.peak_sum() < peak) {
        peak = one.peak_sum();
        std::copy(one.slots().begin(), one.slots().end(), out);
      }
    };
    one.set_rows(load.rows.data() + std::size_t{layer} * load.experts,
                 std::size_t{load.layers} * load.experts);
    one.tie(ties(groups, load, layer));
    one.replicate();
    one.pack();
    finish(true);
    if (times > 0)
      if (const auto start =
              published_start(load, shape, layer, groups.possible() ? of_layer.nodes : 1);
          !start.empty() && one.adopt(start))
        finish(false);
    plan.peak_after += peak;
  }
}

/// The best improvements of all layers, until the moves are used up.
result<void> plan_from_current(const load_view& load, const eplb_shape& shape,
                               const eplb_limits& limits, eplb_plan& plan) {
  const layer_shape of_layer = shape_of_layer(load, shape);
  const group_packer groups{shape, of_layer};
  layer_balancer one{of_layer};
  const std::size_t size = std::size_t{shape.ranks} * shape.slots;
  std::vector<std::vector<improvement>> found(load.layers);
  // More than its share, as layers differ, but not all: most of them would be found for nothing.
  const std::uint32_t of_one_layer =
      std::min(limits.moves_max, std::max(8U, limits.moves_max / load.layers * 4));
  for (std::uint32_t layer = 0; layer < load.layers; ++layer) {
    one.set_rows(load.rows.data() + std::size_t{layer} * load.experts,
                 std::size_t{load.layers} * load.experts);
    one.tie(ties(groups, load, layer));
    if (!one.adopt(std::span{plan.expert_of_slot}.subspan(layer * size, size)))
      return fail(ec::bad_argument,
                  "the placement of layer {} misses an expert or has one twice on a rank", layer);
    const double peak = one.peak_sum();
    plan.peak_before += peak;
    one.improve(rounds_from_current, of_one_layer, peak * layer_gain_min, false, &found[layer]);
  }
  plan.peak_after = plan.peak_before;
  // A layer's improvements build on each other, so each offers its next one only.
  struct offer {
    double gain = 0; ///< per move
    std::uint32_t layer = 0;
    bool operator<(const offer& o) const {
      return gain != o.gain ? gain < o.gain : layer > o.layer;
    }
  };
  std::vector<std::size_t> next(load.layers);
  std::priority_queue<offer> offers;
  const auto put = [&](std::uint32_t layer) {
    if (next[layer] < found[layer].size()) {
      const improvement& i = found[layer][next[layer]];
      offers.push({i.gain / std::max(i.moves, 1U), layer});
    }
  };
  for (std::uint32_t layer = 0; layer < load.layers; ++layer)
    put(layer);
  while (!offers.empty()) {
    const std::uint32_t layer = offers.top().layer;
    offers.pop();
    const improvement& i = found[layer][next[layer]];
    if (i.moves > limits.moves_max - plan.moves)
      continue; // a cheaper one of another layer may still fit
    for (std::uint32_t c = 0; c < i.count; ++c)
      plan.expert_of_slot[layer * size + i.changes[c].rank * shape.slots + i.changes[c].slot] =
          i.changes[c].expert;
    plan.moves += i.moves;
    plan.peak_after -= i.gain;
    ++next[layer];
    put(layer);
  }
  return {};
}

} // namespace

rank_balance balance_of(const load_view& load, std::uint32_t ranks,
                        std::span<const std::uint32_t> slots) {
  const std::size_t of_layer = slots.size() / load.layers, of_rank = of_layer / ranks;
  std::vector<double> copies(load.experts), rows(ranks);
  rank_balance sum;
  for (std::uint32_t layer = 0; layer < load.layers; ++layer) {
    const auto held = slots.subspan(layer * of_layer, of_layer);
    std::fill(copies.begin(), copies.end(), 0.0);
    for (const std::uint32_t e : held)
      if (e < load.experts)
        ++copies[e];
    for (std::uint32_t bin = 0; bin < load.bins; ++bin) {
      const float* of_bin =
          load.rows.data() + (std::size_t{bin} * load.layers + layer) * load.experts;
      std::fill(rows.begin(), rows.end(), 0.0);
      for (std::size_t s = 0; s < of_layer; ++s)
        if (held[s] < load.experts)
          rows[s / of_rank] += static_cast<double>(of_bin[held[s]]) / copies[held[s]];
      sum.peak += *std::max_element(rows.begin(), rows.end());
      sum.mean += std::accumulate(rows.begin(), rows.end(), 0.0) / ranks;
    }
  }
  return sum;
}

result<eplb_plan> plan_experts(const load_view& load, const eplb_shape& shape,
                               const eplb_limits& limits, std::span<const std::uint32_t> current) {
  DI_TRY_VOID(checked(load, shape, current));
  const std::size_t size = std::size_t{shape.ranks} * shape.slots;
  eplb_plan fresh;
  const std::size_t slots = size * load.layers;
  if (current.empty()) {
    fresh.expert_of_slot.resize(slots);
    plan_from_nothing(load, shape, fresh);
    for (const std::uint32_t e : fresh.expert_of_slot)
      fresh.moves += e != layer_balancer::none ? 1 : 0;
    if (fresh.moves > limits.moves_max)
      return fail(ec::limit_exceeded, "a plan from nothing has {} moves, allowed are {}",
                  fresh.moves, limits.moves_max);
    fresh.mean = balance_of(load, shape.ranks, fresh.expert_of_slot).mean;
    return fresh;
  }
  eplb_plan plan;
  plan.expert_of_slot.assign(current.begin(), current.end());
  DI_TRY_VOID(plan_from_current(load, shape, limits, plan));
  if (limits.moves_max >= slots) {
    fresh.expert_of_slot.resize(slots);
    plan_from_nothing(load, shape, fresh);
    fresh.peak_before = plan.peak_before;
    if (fresh.peak_after < plan.peak_after * (1 - layer_gain_min))
      plan = std::move(fresh);
  }
  plan.moves = 0; // what moved twice, or away and back, counts once or not at all
  for (std::size_t s = 0; s < slots; s += shape.slots)
    plan.moves += keep_in_place(std::span{plan.expert_of_slot}.subspan(s, shape.slots),
                                current.subspan(s, shape.slots));
  if (plan.peak_before - plan.peak_after < limits.gain_min * plan.peak_before) {
    plan.expert_of_slot.assign(current.begin(), current.end());
    plan.moves = 0;
    plan.peak_after = plan.peak_before;
  }
  plan.mean = balance_of(load, shape.ranks, plan.expert_of_slot).mean;
  return plan;
}

} // namespace di::engine
