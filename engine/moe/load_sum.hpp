// SPDX-License-Identifier: Apache-2.0
// Expert loads of all ranks, added up from their windows.
#pragma once

#include "engine/moe/eplb.hpp"
#include "engine/moe/load_window.hpp"
#include "engine/moe/placement.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/expert_shard.hpp"

#include <cstdint>
#include <vector>

namespace di::engine {

/// Owned by REBALANCER's core. Windows of different ranks are not aligned in time: bin i of one is
/// added to bin i of another, so bins say how loads vary in time, not when.
class load_sum {
public:
  /// @param groups  layers of the model  @param bins  parts of a window that are kept apart
  load_sum(std::vector<expert_layers> groups, std::uint32_t bins);

  /// @errors bad_shape: layers or experts that the model does not have; bad_format; unchanged then
  result<void> add(const proto::expert_load& m);
  void clear();
  /// Older loads count half as much.
  void fade();
  /// Loads of the layers of a group; valid until the next call of add(). @pre group < groups
  load_view view(std::size_t group) const;

private:
  std::size_t group_of(std::uint32_t layer, std::uint32_t experts) const;

  std::vector<expert_layers> groups_;
  std::uint32_t bins_;
  std::vector<std::vector<float>> rows_; ///< [groups][bins, layers, experts]
  std::vector<std::uint32_t> counts_;    ///< scratch
};

} // namespace di::engine
