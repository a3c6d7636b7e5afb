// SPDX-License-Identifier: Apache-2.0
// Random plans from a seed, one after the other; and cycles of killing and coming back.
#pragma once

#include "chaos/plan.hpp"

#include <cstdint>

namespace di::chaos {

struct soak_shape {
  std::uint32_t ranks = 0, nodes = 1;
  bool journal = true; ///< the topology has a journal on disk: control may die
};

/// The plan of one round. The same seed and round give the same plan.
plan draw_plan(std::uint64_t seed, std::uint32_t round, const soak_shape& shape);

/// Kills a random rank whenever the group is whole, `count` times at most.
plan cycle_plan(std::uint64_t seed, std::uint32_t round, std::uint32_t count);

/// As YAML that read_plan() takes.
std::string to_yaml(const plan& p);

} // namespace di::chaos
