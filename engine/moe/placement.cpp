// SPDX-License-Identifier: Apache-2.0
// Building, checking and looking up placements.
#include "engine/moe/placement.hpp"

#include <algorithm>

namespace di::engine {

namespace {

// Bounds on what a message may claim; far above any model (EP1024, 384 experts).
constexpr std::size_t ranks_max = 65'536;
constexpr std::uint32_t experts_max = 65'536;
constexpr std::uint32_t layers_max = 4'096;

} // namespace

result<placement> placement::contiguous(std::span<const expert_layers> groups,
                                        std::span<const placed_rank> ranks, std::uint32_t redundant,
                                        epoch version, epoch view) {
  if (ranks.empty())
    return fail(ec::bad_argument, "a placement needs at least one rank");
  proto::placement_published m;
  m.placement = version;
  m.view = view;
  for (const placed_rank& r : ranks) {
    m.ranks.push_back(r.rank);
    m.lives.push_back(r.life);
  }
  for (const expert_layers& g : groups) {
    if (g.experts == 0 || g.experts > experts_max)
      return fail(ec::bad_argument, "layers {}..{} claim {} experts, allowed are 1..{}",
                  g.first_layer, g.first_layer + g.layers, g.experts, experts_max);
    const auto slots =
        slots_per_rank(g.experts, redundant, static_cast<std::uint32_t>(ranks.size()));
    proto::placement_group& out = m.groups.emplace_back();
    out.first_layer = g.first_layer;
    out.layers = g.layers;
    out.experts = g.experts;
    out.slots = slots;
    out.expert_of_slot.resize(ranks.size() * slots);
    for (std::size_t s = 0; s < out.expert_of_slot.size(); ++s)
      out.expert_of_slot[s] = static_cast<std::uint32_t>(s % g.experts);
  }
  return from(m);
}

result<placement> placement::from(const proto::placement_published& m) {
  if (m.ranks.empty() || m.ranks.size() > ranks_max)
    return fail(ec::limit_exceeded, "a placement over {} ranks, allowed are 1..{}", m.ranks.size(),
                ranks_max);
  if (m.lives.size() != m.ranks.size())
    return fail(ec::bad_shape, "a placement with {} ranks and {} incarnations", m.ranks.size(),
                m.lives.size());
  for (std::size_t i = 1; i < m.ranks.size(); ++i)
    if (m.ranks[i - 1] >= m.ranks[i])
      return fail(ec::bad_argument, "ranks of a placement must rise, but {} follows {}",
                  m.ranks[i].v, m.ranks[i - 1].v);
  placement p;
  for (const proto::placement_group& g : m.groups) {
    DI_TRY(group indexed, index_group(g, m.ranks.size()));
    for (const group& other : p.groups_)
      if (g.first_layer < other.first_layer + other.layers
          && other.first_layer < g.first_layer + g.layers)
        return fail(ec::duplicate, "layer {} is placed twice",
                    std::max(g.first_layer, other.first_layer));
    p.groups_.push_back(std::move(indexed));
  }
  p.source_ = m;
  return p;
}

result<placement::group> placement::index_group(const proto::placement_group& g,
                                                std::size_t ranks) {
  if (g.layers == 0 || g.layers > layers_max || g.first_layer > layers_max || g.experts == 0
      || g.experts > experts_max || g.slots == 0 || g.slots > g.experts)
    return fail(ec::limit_exceeded,
                "placement of layers {}+{} with {} experts in {} slots per rank is out of bounds",
                g.first_layer, g.layers, g.experts, g.slots);
  const std::size_t one = ranks * g.slots;
  if (g.expert_of_slot.size() != one && g.expert_of_slot.size() != one * g.layers)
    return fail(ec::bad_shape, "placement of layer {}: {} slots, expected {} or {}", g.first_layer,
                g.expert_of_slot.size(), one, one * g.layers);
  group out{g.first_layer, g.layers, g.experts, g.slots, {}};
  const auto tables = static_cast<std::uint32_t>(g.expert_of_slot.size() / one);
  for (std::uint32_t t = 0; t < tables; ++t) {
    DI_TRY(table made, index_table(g, ranks, t));
    out.tables.push_back(std::move(made));
  }
  return out;
}

result<placement::table> placement::index_table(const proto::placement_group& g, std::size_t ranks,
                                                std::uint32_t which) {
  const std::uint32_t* slots = g.expert_of_slot.data() + which * ranks * g.slots;
  table t;
  t.begins.assign(g.experts + 1, 0);
  for (std::size_t s = 0; s < ranks * g.slots; ++s) {
    if (slots[s] == empty_slot)
      continue;
    if (slots[s] >= g.experts)
      return fail(ec::bad_argument, "placement of layer {}: slot {} holds expert {} of {}",
                  g.first_layer + which, s, slots[s], g.experts);
    ++t.begins[slots[s] + 1];
  }
  for (std::uint32_t e = 0; e < g.experts; ++e) {
    if (t.begins[e + 1] == 0)
      return fail(ec::not_found, "placement of layer {}: expert {} has no slot",
                  g.first_layer + which, e);
    t.begins[e + 1] += t.begins[e];
  }
  t.holders.resize(t.begins[g.experts]);
  std::vector<std::uint32_t> next(t.begins.begin(), t.begins.end() - 1);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (std::size_t s = rank * g.slots; s < (rank + 1) * g.slots; ++s) {
      if (slots[s] == empty_slot)
        continue;
      std::uint32_t& at = next[slots[s]];
      if (at > t.begins[slots[s]] && t.holders[at - 1] == rank)
        return fail(ec::duplicate, "placement of layer {}: the {}th rank holds expert {} twice",
                    g.first_layer + which, rank, slots[s]);
      t.holders[at++] = static_cast<std::uint32_t>(rank);
    }
  return t;
}

std::optional<std::size_t> placement::index_of(rank_id rank) const noexcept {
  const auto at = std::lower_bound(source_.ranks.begin(), source_.ranks.end(), rank);
  if (at == source_.ranks.end() || *at != rank)
    return std::nullopt;
  return static_cast<std::size_t>(at - source_.ranks.begin());
}

const placement::group* placement::group_of(layer_id layer) const noexcept {
  for (const group& g : groups_)
    if (layer.v >= g.first_layer && layer.v - g.first_layer < g.layers)
      return &g;
  return nullptr;
}

const placement::table* placement::table_of(layer_id layer) const noexcept {
  const group* g = group_of(layer);
  if (!g)
    return nullptr;
  return &g->tables[g->tables.size() == 1 ? 0 : layer.v - g->first_layer];
}

std::uint32_t placement::experts(layer_id layer) const noexcept {
  const group* g = group_of(layer);
  return g ? g->experts : 0;
}

std::span<const std::uint32_t> placement::held(std::size_t index, layer_id layer) const noexcept {
  const group* g = group_of(layer);
  if (!g)
    return {};
  const auto which = static_cast<std::size_t>(g - groups_.data());
  const std::size_t table_index = g->tables.size() == 1 ? 0 : layer.v - g->first_layer;
  return std::span{source_.groups[which].expert_of_slot}.subspan(
      (table_index * ranks() + index) * g->slots, g->slots);
}

bool placement::holds(std::size_t index, layer_id layer, std::uint32_t expert) const noexcept {
  const auto who = holders(layer, expert);
  return std::binary_search(who.begin(), who.end(), static_cast<std::uint32_t>(index));
}

std::span<const std::uint32_t> placement::holders(layer_id layer,
                                                  std::uint32_t expert) const noexcept {
  const table* t = table_of(layer);
  if (!t || expert + 1 >= t->begins.size())
    return {};
  return std::span{t->holders}.subspan(t->begins[expert],
                                       t->begins[expert + 1] - t->begins[expert]);
}

std::size_t placement::serving(std::size_t caller, layer_id layer, std::uint32_t expert,
                               std::uint64_t turn) const noexcept {
  const auto who = holders(layer, expert);
  if (who.size() == ranks())
    return caller;
  return who[(caller + turn) % who.size()];
}

} // namespace di::engine
