// SPDX-License-Identifier: Apache-2.0
// The published load balancer, to compare with: groups to nodes, copies, copies to ranks.
#include "engine/moe/eplb.hpp"

#include <algorithm>
#include <numeric>

namespace di::engine {

namespace {

/// Packs items on packs of equal size, heaviest first on the lightest.
/// @return  per pack, its items in the order they came
std::vector<std::vector<std::uint32_t>> packed(std::span<const float> weights,
                                               std::uint32_t packs) {
  const auto items = static_cast<std::uint32_t>(weights.size());
  const std::uint32_t room = items / packs;
  std::vector<std::vector<std::uint32_t>> out(packs);
  std::vector<std::uint32_t> order(items);
  std::iota(order.begin(), order.end(), 0U);
  if (room > 1)
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return weights[a] > weights[b]; });
  std::vector<float> load(packs);
  for (const std::uint32_t item : order) {
    std::uint32_t best = packs;
    for (std::uint32_t p = 0; p < packs; ++p)
      if (out[p].size() < room && (best == packs || (room > 1 && load[p] < load[best])))
        best = p;
    out[best].push_back(item);
    load[best] += weights[item];
  }
  return out;
}

/// @param experts  of one node, as numbers in the layer  @param out [ranks * slots] of the node
void plan_node(std::span<const float> rows, std::span<const std::uint32_t> experts,
               std::uint32_t ranks, std::span<std::uint32_t> out) {
  std::vector<std::uint32_t> copy_of(experts.size());
  std::iota(copy_of.begin(), copy_of.end(), 0U);
  std::vector<float> count(experts.size(), 1);
  const auto share = [&](std::uint32_t i) { return rows[experts[i]] / count[i]; };
  while (copy_of.size() < out.size()) {
    std::uint32_t best = 0;
    for (std::uint32_t i = 1; i < experts.size(); ++i)
      if (share(i) > share(best))
        best = i;
    copy_of.push_back(best);
    ++count[best];
  }
  std::vector<float> weights;
  for (const std::uint32_t i : copy_of)
    weights.push_back(share(i));
  std::size_t at = 0;
  for (const auto& pack : packed(weights, ranks))
    for (const std::uint32_t copy : pack)
      out[at++] = experts[copy_of[copy]];
}

} // namespace

result<std::vector<std::uint32_t>>
plan_experts_published(std::span<const float> rows, std::uint32_t layers, std::uint32_t replicas,
                       std::uint32_t groups, std::uint32_t nodes, std::uint32_t ranks) {
  if (layers == 0 || ranks == 0 || nodes == 0 || groups == 0 || rows.empty()
      || rows.size() % layers != 0)
    return fail(ec::bad_argument, "{} loads, {} layers, {} ranks, {} nodes, {} groups", rows.size(),
                layers, ranks, nodes, groups);
  const auto experts = static_cast<std::uint32_t>(rows.size() / layers);
  if (groups % nodes != 0) // the published rule: then all ranks are alike
    groups = nodes = 1;
  if (experts % groups != 0 || ranks % nodes != 0 || replicas % ranks != 0 || replicas < experts)
    return fail(ec::bad_shape, "{} experts in {} groups, {} replicas, {} ranks on {} nodes",
                experts, groups, replicas, ranks, nodes);
  const std::uint32_t group_size = experts / groups;
  std::vector<std::uint32_t> out(std::size_t{layers} * replicas);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const auto of_layer = rows.subspan(std::size_t{layer} * experts, experts);
    std::vector<float> weights(groups);
    for (std::uint32_t e = 0; e < experts; ++e)
      weights[e / group_size] += of_layer[e];
    const auto groups_of = packed(weights, nodes);
    for (std::uint32_t node = 0; node < nodes; ++node) {
      std::vector<std::uint32_t> mine;
      for (const std::uint32_t g : groups_of[node])
        for (std::uint32_t i = 0; i < group_size; ++i)
          mine.push_back(g * group_size + i);
      plan_node(of_layer, mine, ranks / nodes,
                std::span{out}.subspan(std::size_t{layer} * replicas
                                           + std::size_t{node} * (replicas / nodes),
                                       replicas / nodes));
    }
  }
  return out;
}

} // namespace di::engine
