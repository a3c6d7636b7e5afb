// SPDX-License-Identifier: Apache-2.0
// Drawing placements.
#include "engine/moe/random_placement.hpp"

#include "engine/moe/splitmix.hpp"

#include <algorithm>
#include <numeric>

namespace di::engine {

std::vector<std::uint32_t> random_placement(const expert_layers& layers, std::uint32_t ranks,
                                            std::uint32_t slots, std::uint64_t seed) {
  splitmix random{seed};
  std::vector<std::uint32_t> out;
  std::vector<std::uint32_t> experts(layers.experts), places(std::size_t{ranks} * slots);
  for (std::uint32_t layer = 0; layer < layers.layers; ++layer) {
    // One home for each, on places drawn without return; then each rank draws from what it lacks.
    std::vector<std::uint32_t> held(places.size(), placement::empty_slot);
    std::iota(experts.begin(), experts.end(), 0U);
    std::iota(places.begin(), places.end(), 0U);
    random.shuffle(experts);
    random.shuffle(places);
    for (std::uint32_t e = 0; e < layers.experts; ++e)
      held[places[e]] = experts[e];
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const auto begin = held.begin() + std::ptrdiff_t{rank} * slots, end = begin + slots;
      random.shuffle(experts);
      auto next = experts.begin();
      for (auto at = begin; at != end; ++at) {
        if (*at != placement::empty_slot)
          continue;
        while (std::find(begin, end, *next) != end)
          ++next;
        *at = *next;
      }
    }
    out.insert(out.end(), held.begin(), held.end());
  }
  return out;
}

std::uint32_t moves_between(std::span<const std::uint32_t> before,
                            std::span<const std::uint32_t> after, std::uint32_t ranks) {
  const std::size_t slots = after.size() / ranks;
  std::uint32_t moves = 0;
  for (std::size_t rank = 0; rank < after.size(); rank += slots) {
    const auto held = before.subspan(rank, slots);
    for (const std::uint32_t e : after.subspan(rank, slots))
      moves += e != placement::empty_slot && std::find(held.begin(), held.end(), e) == held.end();
  }
  return moves;
}

} // namespace di::engine
