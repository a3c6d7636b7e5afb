// SPDX-License-Identifier: Apache-2.0
// Whole-row passes of the sampler: block maxima, the sum of the soft-max, integer masses. Same bits
// on every machine.
#pragma once

#include "engine/sampling/philox.hpp"

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

/// Buckets of top_p: 32 per unit of scaled logit below the maximum; the last one takes the rest,
/// whose mass is zero.
inline constexpr std::size_t mass_buckets = 1312;

/// Bucket of a scaled logit. Rises as the logit falls, so buckets are ordered like tokens.
std::size_t mass_bucket(double scaled, double highest) noexcept;

/// Adds the mass of each token with row[i] / temperature >= threshold to its bucket.
///
/// @param sums   [mass_buckets] integers, so the order of adding does not matter
void add_masses(std::span<const float> row, double temperature, double highest, double threshold,
                std::span<std::uint64_t> sums);

/// Whether some token of a whole block (256 tokens) could reach `best` with its noise. May say yes
/// in vain.
///
/// @param block         256 logits
/// @param first_token   id of the first one, a multiple of 256
/// @return              false only if logit / temperature + noise < best for all of them
bool block_can_win(const float* block, double temperature, double best, const noise_place& place,
                   std::uint32_t first_token);

namespace detail {

/// The passes compiled for one vector width.
struct row_functions {
  const char* name;
  bool (*block_maxima)(std::span<const float> row, float* maxima);
  void (*lane_sums)(std::span<const float> row, double highest,
                    double* lanes); ///< adds to lanes [256]
  void (*add_masses)(std::span<const float> row, double temperature, double highest,
                     double threshold, std::uint64_t* sums);
  bool (*block_can_win)(const float* block, double temperature, double best,
                        const noise_place& place, std::uint32_t first_token);
};

/// Those that this machine can run, widest last; the last one is used. For the test that all give
/// the same bits.
std::span<const row_functions> row_variants();

} // namespace detail
} // namespace di::engine
