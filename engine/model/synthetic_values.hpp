// SPDX-License-Identifier: Apache-2.0
// Element values of synthetic checkpoints: a pure function of seed, tensor name and flat index.
#pragma once

#include "engine/model/spec.hpp"
#include "engine/model/tensor_table.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace di::engine {

/// Start of the random sequence of one name.
std::uint64_t synthetic_stream(std::uint64_t seed, std::string_view name) noexcept;
/// Draw number i of a sequence.
std::uint64_t synthetic_draw(std::uint64_t stream, std::uint64_t i) noexcept;

/// All values of one tensor. Immutable: threads may fill different parts at once.
///
/// Everything is 64-bit integers and binary64, one rounding per operation, in the order of the
/// specification: the bytes are the same on every machine.
/// @source  spec of the synthetic checkpoint, sections 2 to 4
class synthetic_values {
public:
  synthetic_values(std::uint64_t seed, const expected_tensor& tensor, const model_spec& spec);

  /// Writes stored elements [first, first + count) to `out`.
  void fill(std::int64_t first, std::int64_t count, std::byte* out) const;

private:
  enum class rule : std::uint8_t {
    normal,    ///< mean + std * z
    norm,      ///< mean * (1 + 0.1 z)
    embed,     ///< std * z; one row from another sequence
    successor, ///< head: rows point at four other rows of the embedding
    fp8_tile,
    fp8_row,
    fp8_scale,
    fp4,
    fp4_scale,
  };

  void choose(const expected_tensor& tensor, const model_spec& spec, std::uint64_t seed);
  void projection(std::string_view owner, const expected_tensor& tensor, std::uint64_t seed);
  double value(std::int64_t i) const noexcept;     // normal, norm
  double embedding(std::int64_t i) const noexcept; // embed
  double successor(std::int64_t i) const noexcept;
  std::uint8_t fp8(std::int64_t i) const noexcept;

  rule rule_ = rule::normal;
  dtype type_ = dtype::bfloat16;
  std::uint64_t stream_ = 0;
  std::uint64_t other_ = 0; ///< successor: embedding; embed: noise row; fp8: scales
  double mean_ = 0;
  double std_ = 0;
  int exponent_ = 0; ///< of the smallest scale, unbiased
  std::int64_t rows_ = 1;
  std::int64_t cols_ = 1;
  std::int64_t noise_row_ = -1;
  std::array<double, 4> alpha_{}; ///< successor: c * alpha
};

} // namespace di::engine
