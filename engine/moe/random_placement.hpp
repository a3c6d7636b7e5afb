// SPDX-License-Identifier: Apache-2.0
// Legal placements without sense, to test that answers do not depend on where experts live.
#pragma once

#include "engine/moe/placement.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

/// Every expert of every layer on at least one rank, no rank with one twice; the same for the same
/// seed. @pre slots * ranks >= experts >= slots  @return [layers, ranks, slots]
std::vector<std::uint32_t> random_placement(const expert_layers& layers, std::uint32_t ranks,
                                            std::uint32_t slots, std::uint64_t seed);

/// Slots of a layer that hold an expert which their rank did not hold before.
/// @param before, after  [ranks, slots]
std::uint32_t moves_between(std::span<const std::uint32_t> before,
                            std::span<const std::uint32_t> after, std::uint32_t ranks);

} // namespace di::engine
