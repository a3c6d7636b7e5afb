// SPDX-License-Identifier: Apache-2.0
#include "engine/model/engram_constants.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

namespace di::engine {
namespace {

__extension__ using u128 = unsigned __int128;

constexpr std::array<std::uint64_t, 12> witnesses{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};

std::uint64_t mul_mod(std::uint64_t a, std::uint64_t b, std::uint64_t m) {
  return static_cast<std::uint64_t>(u128{a} * b % m);
}

std::uint64_t pow_mod(std::uint64_t a, std::uint64_t e, std::uint64_t m) {
  std::uint64_t r = 1;
  for (a %= m; e != 0; e >>= 1, a = mul_mod(a, a, m))
    if ((e & 1) != 0)
      r = mul_mod(r, a, m);
  return r;
}

/// State words of numpy's SeedSequence(entropy) for an entropy below 2^64.
std::array<std::uint64_t, 4> seed_words(std::uint64_t entropy) {
  std::uint32_t h = 0x43B0D7E5U;
  const auto hashed = [&h](std::uint32_t v) {
    v ^= h;
    h *= 0x931E8875U;
    v *= h;
    return v ^ (v >> 16);
  };
  const std::array<std::uint32_t, 4> words{static_cast<std::uint32_t>(entropy),
                                           static_cast<std::uint32_t>(entropy >> 32), 0, 0};
  std::array<std::uint32_t, 4> pool{};
  for (std::size_t i = 0; i < 4; ++i)
    pool[i] = hashed(words[i]);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 4; ++j)
      if (i != j) {
        const std::uint32_t r = 0xCA01F9DDU * pool[j] - 0x4973F715U * hashed(pool[i]);
        pool[j] = r ^ (r >> 16);
      }
  std::uint32_t g = 0x8B51F9DDU;
  std::array<std::uint64_t, 4> out{};
  for (std::size_t i = 0; i < 8; ++i) {
    std::uint32_t v = pool[i % 4] ^ g;
    g *= 0x58F38DEDU;
    v *= g;
    v ^= v >> 16;
    out[i / 2] |= std::uint64_t{v} << (32 * (i % 2));
  }
  return out;
}

/// PCG64 (XSL-RR, 128-bit state) as numpy seeds it.
class pcg64 {
public:
  explicit pcg64(std::uint64_t entropy) {
    const auto s = seed_words(entropy);
    inc_ = ((u128{s[2]} << 64 | s[3]) << 1) | 1U;
    state_ = (inc_ + (u128{s[0]} << 64 | s[1])) * multiplier() + inc_;
  }
  std::uint64_t draw() {
    state_ = state_ * multiplier() + inc_;
    const auto x = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
    return std::rotr(x, static_cast<int>(state_ >> 122));
  }

private:
  static constexpr u128 multiplier() {
    return u128{0x2360ED051FC65DA4ULL} << 64 | 0x4385DF649FCCF645ULL;
  }
  u128 inc_ = 0;
  u128 state_ = 0;
};

std::vector<std::int64_t> multipliers_of(std::int64_t layer, const engram_shape& shape) {
  const std::uint64_t bound = std::max<std::uint64_t>(
      1, (~std::uint64_t{0} >> 1) / static_cast<std::uint64_t>(shape.classes) / 2);
  const std::uint64_t biased = (0 - bound) % bound; // 2^64 mod bound
  pcg64 generator{10007U * static_cast<std::uint64_t>(layer)};
  std::vector<std::int64_t> row;
  while (row.size() < static_cast<std::size_t>(shape.ngram_max)) {
    const u128 m = u128{generator.draw()} * bound;
    if (static_cast<std::uint64_t>(m) >= biased)
      row.push_back(static_cast<std::int64_t>(static_cast<std::uint64_t>(m >> 64) * 2 + 1));
  }
  return row;
}

} // namespace

bool is_prime(std::int64_t n) {
  if (n < 2)
    return false;
  const auto m = static_cast<std::uint64_t>(n);
  for (const auto p : witnesses)
    if (m % p == 0)
      return m == p;
  const int twos = std::countr_zero(m - 1);
  const std::uint64_t odd = (m - 1) >> twos;
  for (const auto a : witnesses) {
    std::uint64_t x = pow_mod(a, odd, m);
    bool composite = x != 1 && x != m - 1;
    for (int i = 1; composite && i < twos; ++i) {
      x = mul_mod(x, x, m);
      composite = x != m - 1;
    }
    if (composite)
      return false;
  }
  return true;
}

std::vector<std::int64_t> engram_constants::row_offsets(std::size_t engram_index) const {
  std::vector<std::int64_t> offsets;
  std::int64_t next = 0;
  for (const auto& row : primes[engram_index])
    for (const auto p : row) {
      offsets.push_back(next);
      next += p;
    }
  return offsets;
}

std::int64_t engram_constants::rows(std::size_t engram_index) const {
  std::int64_t sum = 0;
  for (const auto& row : primes[engram_index])
    sum = std::accumulate(row.begin(), row.end(), sum);
  return sum;
}

engram_constants compute_engram_constants(const engram_shape& shape) {
  engram_constants c;
  // Each n-gram starts its search at vocab - 1 again but skips used primes: that is one run of
  // consecutive primes.
  std::int64_t p = shape.vocab - 1;
  for (const auto layer : shape.layer_ids) {
    auto& rows = c.primes.emplace_back();
    for (std::int64_t n = 2; n <= shape.ngram_max; ++n) {
      auto& row = rows.emplace_back();
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        do
          ++p;
        while (!is_prime(p));
        row.push_back(p);
      }
    }
    c.multipliers.push_back(multipliers_of(layer, shape));
  }
  return c;
}

} // namespace di::engine
