// SPDX-License-Identifier: Apache-2.0
// Adding up load windows.
#include "engine/moe/load_sum.hpp"

#include <algorithm>
#include <string_view>

namespace di::engine {

load_sum::load_sum(std::vector<expert_layers> groups, std::uint32_t bins)
    : groups_{std::move(groups)}, bins_{std::max(bins, 1U)} {
  for (const expert_layers& g : groups_)
    rows_.emplace_back(std::size_t{bins_} * g.layers * g.experts);
}

/// The group that a layer belongs to; groups_.size() if there is none.
std::size_t load_sum::group_of(std::uint32_t layer, std::uint32_t experts) const {
  std::size_t i = 0;
  while (i < groups_.size()
         && (layer < groups_[i].first_layer || layer - groups_[i].first_layer >= groups_[i].layers
             || experts != groups_[i].experts))
    ++i;
  return i;
}

result<void> load_sum::add(const proto::expert_load& m) {
  constexpr std::size_t loads_max = std::size_t{1} << 28;
  if (m.bins == 0 || m.bins > m.steps)
    return fail(ec::bad_shape, "a window of {} steps in {} bins", m.steps, m.bins);
  std::size_t total = 0;
  for (const proto::load_group& g : m.groups) {
    // One group of a message may have layers of several of the model: those that follow each other
    // with as many experts.
    for (std::uint32_t layer = 0; layer < g.layers; ++layer)
      if (group_of(g.first_layer + layer, g.experts) == groups_.size())
        return fail(ec::bad_shape, "loads of {} experts in layer {}, which the model does not have",
                    g.experts, g.first_layer + layer);
    total += std::size_t{m.bins} * g.layers * g.experts;
    if (total > loads_max)
      return fail(ec::limit_exceeded, "a window of {} bins with {} loads", m.bins, total);
  }
  counts_.assign(total, 0);
  std::string_view text = m.rows;
  DI_TRY_VOID(unpack_counts(text, counts_));
  if (!text.empty())
    return fail(ec::bad_format, "{} bytes behind the last load", text.size());
  const std::uint32_t* from = counts_.data();
  for (const proto::load_group& g : m.groups)
    for (std::uint32_t bin = 0; bin < m.bins; ++bin)
      for (std::uint32_t i = 0; i < g.layers; ++i) {
        const std::size_t which = group_of(g.first_layer + i, g.experts);
        const expert_layers& own = groups_[which];
        const std::size_t bin_here = std::uint64_t{bin} * bins_ / m.bins;
        float* to = rows_[which].data()
                    + (bin_here * own.layers + g.first_layer + i - own.first_layer) * own.experts;
        for (std::uint32_t e = 0; e < own.experts; ++e)
          to[e] += static_cast<float>(*from++);
      }
  return {};
}

void load_sum::clear() {
  for (auto& rows : rows_)
    std::fill(rows.begin(), rows.end(), 0.0F);
}

void load_sum::fade() {
  for (auto& rows : rows_)
    for (float& n : rows)
      n /= 2;
}

load_view load_sum::view(std::size_t group) const {
  return {bins_, groups_[group].layers, groups_[group].experts, rows_[group]};
}

} // namespace di::engine
