// SPDX-License-Identifier: Apache-2.0
// What REBALANCER tells operators about loads.
#include "engine/core/rebalancer_core.hpp"

#include <algorithm>

namespace di::engine {

result<proto::expert_heat> rebalancer_core::on(const proto::get_heat&) const {
  proto::expert_heat m;
  m.placement = placement_.version();
  m.view = placement_.view();
  m.counted = options_.policy.mode != rebalance_mode::off;
  m.ranks = placement_.published().ranks;
  std::vector<double> of_rank(m.ranks.size());
  for (std::size_t g = 0; g < options_.groups.size(); ++g) {
    const load_view loads = heat_.view(g);
    proto::heat_group& group = m.groups.emplace_back();
    group.first_layer = options_.groups[g].first_layer;
    group.layers = loads.layers;
    group.experts = loads.experts;
    for (std::uint32_t layer = 0; layer < loads.layers; ++layer)
      for (std::uint32_t expert = 0; expert < loads.experts; ++expert) {
        const float rows = loads.rows[group.rows.size()];
        const auto holders = placement_.holders(layer_id{group.first_layer + layer}, expert);
        group.rows.push_back(static_cast<std::uint32_t>(std::min(rows, 4e9F)));
        group.copies.push_back(static_cast<std::uint32_t>(holders.size()));
        for (const std::uint32_t holder : holders)
          of_rank[holder] += static_cast<double>(rows) / static_cast<double>(holders.size());
      }
  }
  for (const double rows : of_rank)
    m.rank_rows.push_back(static_cast<std::uint64_t>(rows));
  return m;
}

} // namespace di::engine
