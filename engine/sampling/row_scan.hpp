// SPDX-License-Identifier: Apache-2.0
// Whole-row passes of the sampler: block maxima, the sum of the soft-max, integer masses. Same bits
// on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

/// Tokens per block of the pruning and of the fixed order of sums.
inline constexpr std::size_t row_block = 256;

/// Maxima of blocks of 256 tokens (the last block may be shorter).
///
/// @param row      [vocab] fp32; -infinity marks tokens that cannot be chosen
/// @param maxima   receives [ceil(vocab / 256)]
/// @return         false if some value is NaN or +infinity
bool block_maxima(std::span<const float> row, std::vector<float>& maxima);

/// log of the sum of e^row over a row, in double.
///
/// The sum runs in 256 lanes, blocks ascending; the lanes are then halved pairwise (lane i with
/// lane i + width / 2). So the bits depend on the row only. @pre highest is the maximum of the row
/// and finite
double log_sum_exp(std::span<const float> row, float highest);

/// Integer weight of a scaled logit: floor(e^(scaled - highest) * 2^40). Sums of up to 2^18 of them
/// are exact.
std::uint64_t token_mass(double scaled, double highest) noexcept;

/// Sum of token_mass over the tokens whose value row[i] / temperature is at least `threshold`.
std::uint64_t row_mass(std::span<const float> row, double temperature, double highest,
                       double threshold);

namespace detail {

/// The passes compiled for one vector width.
struct row_functions {
  const char* name;
  bool (*block_maxima)(std::span<const float> row, float* maxima);
  void (*lane_sums)(std::span<const float> row, double highest,
                    double* lanes); ///< adds to lanes [256]
  std::uint64_t (*row_mass)(std::span<const float> row, double temperature, double highest,
                            double threshold);
};

/// Those that this machine can run, widest last; the last one is used. For the test that all give
/// the same bits.
std::span<const row_functions> row_variants();

} // namespace detail
} // namespace di::engine
