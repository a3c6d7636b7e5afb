// SPDX-License-Identifier: Apache-2.0
// Counter-based random words (Philox4x32-10) and how the sampler addresses them. No state anywhere.
#pragma once

#include "messaging/base/ids.hpp"

#include <array>
#include <cstdint>

namespace di::engine {

/// Four 32-bit words out of a counter and a key.
///
/// @source   Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11), Philox4x32 with
/// ten rounds
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

/// What a random word is for; streams are independent of each other.
enum class noise_stream : std::uint32_t { token = 0, accept = 1, draft = 2, residual = 3 };

/// Where a token is drawn. Never a batch row, a step number or an accepted count: preemption,
/// migration and speculation must not move it.
struct noise_place {
  std::uint64_t seed = 0;
  std::uint32_t position = 0; ///< absolute index of the token being drawn, prompt included
  std::uint32_t choice = 0;   ///< [0, n) number of the completion
};

/// Words of the four tokens 4 * quad .. 4 * quad + 3 at a place.
constexpr std::array<std::uint32_t, 4>
noise_words(const noise_place& at, std::uint32_t quad,
            noise_stream stream = noise_stream::token) noexcept {
  return philox4x32(
      {quad, at.position, static_cast<std::uint32_t>(stream), at.choice},
      {static_cast<std::uint32_t>(at.seed), static_cast<std::uint32_t>(at.seed >> 32)});
}

} // namespace di::engine
