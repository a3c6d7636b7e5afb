// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same everywhere; no library distribution promises that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace di::engine {

/// @source splitmix64, https://prng.di.unimi.it/splitmix64.c
class splitmix {
public:
  explicit splitmix(std::uint64_t seed) noexcept : state_{seed} {}

  /// In [0, n). @pre n > 0
  std::uint32_t below(std::size_t n) noexcept {
    std::uint64_t z = state_ += 0x9e37'79b9'7f4a'7c15U;
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9U;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebU;
    return static_cast<std::uint32_t>((z ^ (z >> 31)) % n);
  }
  void shuffle(std::vector<std::uint32_t>& all) noexcept {
    for (std::size_t i = all.size(); i > 1; --i)
      std::swap(all[i - 1], all[below(i)]);
  }

private:
  std::uint64_t state_;
};

} // namespace di::engine
