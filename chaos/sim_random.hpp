// SPDX-License-Identifier: Apache-2.0
// Random numbers of the simulator: the same on every machine, and one stream per purpose, so that
// leaving a fault out does not change what the others do.
#pragma once

#include "messaging/base/env.hpp"

#include <cstdint>

namespace di::sim {

/// SplitMix64. @source Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014
class sim_random {
public:
  explicit sim_random(std::uint64_t seed) : state_{seed} {}

  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9E37'79B9'7F4A'7C15U;
    z = (z ^ (z >> 30U)) * 0xBF58'476D'1CE4'E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D0'49BB'1331'11EBU;
    return z ^ (z >> 31U);
  }
  /// [0, n); 0 if n is 0
  std::uint64_t below(std::uint64_t n) noexcept { return n == 0 ? 0 : next() % n; }
  /// [first, last]
  std::uint64_t between(std::uint64_t first, std::uint64_t last) noexcept {
    return first + below(last - first + 1);
  }
  bool chance(double p) noexcept {
    return p > 0 && static_cast<double>(next() >> 11U) * 0x1p-53 < p;
  }
  /// [first, last]
  duration span(duration first, duration last) noexcept {
    return first + duration{below(static_cast<std::uint64_t>((last - first).count()) + 1)};
  }
  /// A stream of its own.
  sim_random fork(std::uint64_t purpose) noexcept {
    sim_random r{state_ ^ (purpose * 0xD6E8'FEB8'6659'FD93U)};
    r.next();
    return sim_random{r.next()};
  }

private:
  std::uint64_t state_;
};

} // namespace di::sim
