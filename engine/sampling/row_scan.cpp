// SPDX-License-Identifier: Apache-2.0
// Each pass is one loop body without branches or reductions across lanes, compiled for several
// vector widths. Only IEEE basic operations occur and contraction is off, so every width gives the
// same bits.
#include "engine/sampling/row_scan.hpp"

#include "engine/sampling/det_math.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#if defined(__x86_64__) && defined(__GNUC__)
#define DI_ROW_X86 1
#else
#define DI_ROW_X86 0
#endif

namespace di::engine {
namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

// ---- bodies ----

// The maximum of up to 256 values in 16 lanes; `bad` collects lanes that saw NaN or +infinity.
[[gnu::always_inline]] inline float block_max_body(const float* x, std::size_t count,
                                                   std::array<int, 16>& bad) {
  std::array<float, 16> top;
  top.fill(lowest);
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16)
    for (std::size_t l = 0; l < 16; ++l) {
      top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
      bad[l] |= static_cast<int>(!(x[i + l] <= std::numeric_limits<float>::max()));
    }
  float out = lowest;
  for (; i < count; ++i) {
    out = x[i] > out ? x[i] : out;
    bad[0] |= static_cast<int>(!(x[i] <= std::numeric_limits<float>::max()));
  }
  for (const float t : top)
    out = t > out ? t : out;
  return out;
}

[[gnu::always_inline]] inline bool block_maxima_body(std::span<const float> row, float* maxima) {
  std::array<int, 16> bad{};
  for (std::size_t begin = 0; begin < row.size(); begin += row_block)
    *maxima++ = block_max_body(row.data() + begin, std::min(row_block, row.size() - begin), bad);
  int any = 0;
  for (const int b : bad)
    any |= b;
  return any == 0;
}

// Below -700 the term is far under the last bit of any sum, which is at least 1: it counts as
// e^-700.
[[gnu::always_inline]] inline double term_body(float logit, double highest) {
  const double below = static_cast<double>(logit) - highest;
  return detail::exp_inside(below > -700.0 ? below : -700.0);
}

[[gnu::always_inline]] inline void lane_sums_body(std::span<const float> row, double highest,
                                                  double* lanes) {
  const float* x = row.data();
  std::size_t left = row.size();
  for (; left >= row_block; left -= row_block, x += row_block)
    for (std::size_t l = 0; l < row_block; ++l)
      lanes[l] += term_body(x[l], highest);
  for (std::size_t l = 0; l < left; ++l)
    lanes[l] += term_body(x[l], highest);
}

// Floor without a conversion instruction: values lie in [0, 2^40], so adding 2^52 rounds to an
// integer.
[[gnu::always_inline]] inline std::uint64_t mass_body(double scaled, double highest) {
  const double below = scaled - highest;
  const double value = detail::exp_inside(below > -40.0 ? below : -40.0) * 0x1p40;
  const double shifted = value + 0x1p52;
  const double rounded = shifted - 0x1p52;
  const auto up = static_cast<std::uint64_t>(rounded > value);
  return (std::bit_cast<std::uint64_t>(shifted) & 0xFFFFFFFFFFFFFU) - up;
}

[[gnu::always_inline]] inline double bucket_body(double scaled, double highest) {
  const double place = (highest - scaled) * 32.0;
  return place < double{mass_buckets - 1} ? place : double{mass_buckets - 1};
}

[[gnu::always_inline]] inline void add_masses_body(std::span<const float> row, double temperature,
                                                   double highest, double threshold,
                                                   std::uint64_t* sums) {
  std::array<std::uint64_t, row_block> mass;  // NOLINT: filled before use
  std::array<std::int32_t, row_block> bucket; // NOLINT
  for (std::size_t begin = 0; begin < row.size(); begin += row_block) {
    const std::size_t count = std::min(row_block, row.size() - begin);
    const float* x = row.data() + begin;
    for (std::size_t l = 0; l < count; ++l) {
      const double scaled = static_cast<double>(x[l]) / temperature;
      const auto kept = -static_cast<std::uint64_t>(scaled >= threshold); // all bits or none
      mass[l] = mass_body(scaled, highest) & kept;
      bucket[l] = static_cast<std::int32_t>(bucket_body(scaled, highest));
    }
    for (std::size_t l = 0; l < count; ++l)
      sums[bucket[l]] += mass[l];
  }
}

using block_words = std::array<std::array<std::uint32_t, row_block / 4>, 4>; // [word, quad]

// Noise words of 256 tokens: one Philox call per four, all at once.
[[gnu::always_inline]] inline void block_words_body(const noise_place& place,
                                                    std::uint32_t first_token, block_words& words) {
  for (std::uint32_t q = 0; q < row_block / 4; ++q) {
    const auto w = noise_words(place, first_token / 4 + q);
    for (std::size_t i = 0; i < 4; ++i)
      words[i][q] = w[i];
  }
}

// gumbel_bound() without a counting instruction: takes the exponent of the word's distance from the
// top.
[[gnu::always_inline]] inline double bound_body(std::uint32_t word) {
  const auto from_top = static_cast<double>(~word);
  const auto exponent =
      static_cast<std::int32_t>(std::bit_cast<std::uint64_t>(from_top) >> 52) - 1023;
  return static_cast<double>(32 - exponent) * 0.6931471806 + 1e-6;
}

[[gnu::always_inline]] inline bool block_can_win_body(const float* block, double temperature,
                                                      double best, const noise_place& place,
                                                      std::uint32_t first_token) {
  block_words words; // NOLINT: filled next
  block_words_body(place, first_token, words);
  int any = 0;
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t q = 0; q < row_block / 4; ++q) {
      const double scaled = static_cast<double>(block[4 * q + i]) / temperature;
      any |= static_cast<int>(scaled + bound_body(words[i][q]) >= best);
    }
  return any != 0;
}

// ---- one function per vector width ----

#define DI_ROW_VARIANT(name, attribute)                                                            \
  attribute bool block_maxima_##name(std::span<const float> row, float* maxima) {                  \
    return block_maxima_body(row, maxima);                                                         \
  }                                                                                                \
  attribute void lane_sums_##name(std::span<const float> row, double highest, double* lanes) {     \
    lane_sums_body(row, highest, lanes);                                                           \
  }                                                                                                \
  attribute void add_masses_##name(std::span<const float> row, double temperature, double highest, \
                                   double threshold, std::uint64_t* sums) {                        \
    add_masses_body(row, temperature, highest, threshold, sums);                                   \
  }                                                                                                \
  attribute bool block_can_win_##name(const float* block, double temperature, double best,         \
                                      const noise_place& place, std::uint32_t first_token) {       \
    return block_can_win_body(block, temperature, best, place, first_token);                       \
  }                                                                                                \
  constexpr detail::row_functions name##_functions{#name, block_maxima_##name, lane_sums_##name,   \
                                                   add_masses_##name, block_can_win_##name};

DI_ROW_VARIANT(plain, )
#if DI_ROW_X86
DI_ROW_VARIANT(avx2, [[gnu::target("avx2")]])
DI_ROW_VARIANT(avx512, [[gnu::target("avx512f,avx512dq,prefer-vector-width=512")]])
#endif
#undef DI_ROW_VARIANT

const detail::row_functions& functions() {
  static const detail::row_functions& widest = detail::row_variants().back();
  return widest;
}

} // namespace

std::span<const detail::row_functions> detail::row_variants() {
#if DI_ROW_X86
  static const std::array<row_functions, 3> all{plain_functions, avx2_functions, avx512_functions};
  static const std::size_t usable = [] {
    if (!__builtin_cpu_supports("avx2"))
      return std::size_t{1};
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") ? std::size_t{3}
                                                                                   : std::size_t{2};
  }();
  return std::span{all}.first(usable);
#else
  static const std::array<row_functions, 1> all{plain_functions};
  return all;
#endif
}

bool block_maxima(std::span<const float> row, std::vector<float>& maxima) {
  maxima.resize((row.size() + row_block - 1) / row_block);
  return functions().block_maxima(row, maxima.data());
}

double log_sum_exp(std::span<const float> row, float highest) {
  std::array<double, row_block> lanes{};
  functions().lane_sums(row, highest, lanes.data());
  for (std::size_t width = row_block / 2; width > 0; width /= 2)
    for (std::size_t l = 0; l < width; ++l)
      lanes[l] += lanes[l + width];
  return static_cast<double>(highest) + det_log(lanes[0]);
}

std::uint64_t token_mass(double scaled, double highest) noexcept {
  return mass_body(scaled, highest);
}

std::size_t mass_bucket(double scaled, double highest) noexcept {
  return static_cast<std::size_t>(bucket_body(scaled, highest));
}

void add_masses(std::span<const float> row, double temperature, double highest, double threshold,
                std::span<std::uint64_t> sums) {
  functions().add_masses(row, temperature, highest, threshold, sums.data());
}

bool block_can_win(const float* block, double temperature, double best, const noise_place& place,
                   std::uint32_t first_token) {
  return functions().block_can_win(block, temperature, best, place, first_token);
}

} // namespace di::engine
