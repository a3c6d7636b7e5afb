// SPDX-License-Identifier: Apache-2.0
// Primes and multipliers of the Engram hash, as pure functions of the configuration.
#pragma once

#include <cstdint>
#include <vector>

namespace di::engine {

/// Constants of all Engram layers. Index 0 is the position in `engram_layer_ids`, not the layer.
struct engram_constants {
  std::vector<std::vector<std::vector<std::int64_t>>> primes; ///< [engram layer][n-gram][head]
  std::vector<std::vector<std::int64_t>> multipliers;         ///< [engram layer][lookback]
  friend bool operator==(const engram_constants&, const engram_constants&) = default;

  /// First table row of every column of one Engram layer, n-gram major: exclusive prefix sums.
  std::vector<std::int64_t> row_offsets(std::size_t engram_index) const;
  /// Rows of one Engram layer's table: the sum of its primes.
  std::int64_t rows(std::size_t engram_index) const;
};

/// What the constants depend on.
struct engram_shape {
  std::vector<std::int64_t> layer_ids;
  std::int64_t ngram_max = 0; ///< sizes 2 .. ngram_max; lookbacks 0 .. ngram_max - 1
  std::int64_t heads = 0;
  std::int64_t vocab = 0;   ///< primes start at vocab - 1
  std::int64_t classes = 0; ///< compressed vocabulary, [1, 2^30]
};

/// Consecutive unused primes and numpy's default_rng(10007 * layer) draws, without numpy.
///
/// @cost     layers * (ngram_max - 1) * heads prime searches; the caller bounds that product
/// @source   spec of the synthetic checkpoint, section 5; spec of the model, section 2.7
engram_constants compute_engram_constants(const engram_shape& shape);

/// Deterministic primality test, exact for every n below 2^63.
bool is_prime(std::int64_t n);

} // namespace di::engine
