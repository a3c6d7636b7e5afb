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
constexpr double lowest_double = -std::numeric_limits<double>::infinity();

// ---- bodies
// ----------------------------------------------------------------------------------------------------

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

[[gnu::always_inline]] inline void lane_sums_body(std::span<const float> row, double highest,
                                                  double* lanes) {
  std::size_t begin = 0;
  for (; begin + row_block <= row.size(); begin += row_block)
    for (std::size_t l = 0; l < row_block; ++l)
      lanes[l] += det_exp(static_cast<double>(row[begin + l]) - highest);
  for (std::size_t l = 0; begin + l < row.size(); ++l)
    lanes[l] += det_exp(static_cast<double>(row[begin + l]) - highest);
}

// Floor without a conversion instruction: values lie in [0, 2^40], so adding 2^52 rounds to an
// integer.
[[gnu::always_inline]] inline std::uint64_t mass_body(double scaled, double highest) {
  const double below = scaled - highest;
  const double value = det_exp(below < -40.0 ? -40.0 : below) * 0x1p40;
  const double shifted = value + 0x1p52;
  const double rounded = shifted - 0x1p52;
  const std::uint64_t up = rounded > value ? 1 : 0;
  return (std::bit_cast<std::uint64_t>(shifted) & 0xFFFFFFFFFFFFFU) - up;
}

[[gnu::always_inline]] inline std::uint64_t
row_mass_body(std::span<const float> row, double temperature, double highest, double threshold) {
  std::uint64_t sum = 0;
  const float* x = row.data();
  const std::size_t count = row.size();
  for (std::size_t i = 0; i < count; ++i) {
    const double scaled = static_cast<double>(x[i]) / temperature;
    sum += mass_body(scaled >= threshold ? scaled : lowest_double, highest);
  }
  return sum;
}

// ---- one function per vector width
// -----------------------------------------------------------------------------

#define DI_ROW_VARIANT(name, attribute)                                                            \
  attribute bool block_maxima_##name(std::span<const float> row, float* maxima) {                  \
    return block_maxima_body(row, maxima);                                                         \
  }                                                                                                \
  attribute void lane_sums_##name(std::span<const float> row, double highest, double* lanes) {     \
    lane_sums_body(row, highest, lanes);                                                           \
  }                                                                                                \
  attribute std::uint64_t row_mass_##name(std::span<const float> row, double temperature,          \
                                          double highest, double threshold) {                      \
    return row_mass_body(row, temperature, highest, threshold);                                    \
  }                                                                                                \
  constexpr detail::row_functions name##_functions{#name, block_maxima_##name, lane_sums_##name,   \
                                                   row_mass_##name};

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
  static const std::size_t usable =
      !__builtin_cpu_supports("avx2")                                           ? 1
      : __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") ? 3
                                                                                : 2;
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

std::uint64_t row_mass(std::span<const float> row, double temperature, double highest,
                       double threshold) {
  return functions().row_mass(row, temperature, highest, threshold);
}

} // namespace di::engine
