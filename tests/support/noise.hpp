// SPDX-License-Identifier: Apache-2.0
// Seeded random inputs of the kernel tests and benches.
#pragma once

#include "kernels/kernels.hpp"

#include <cstdint>
#include <vector>

namespace di::kernels {

/// Random numbers of the kernel tests.
class noise {
public:
  explicit noise(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15U + 1) {}

  std::uint64_t next();
  std::int64_t below(std::int64_t n);
  /// Roughly normal, of the given size.
  float normal(float size = 1);
  /// bf16 of widely different sizes; some zeros, some subnormal.
  std::vector<bf16> wide_bf16(std::int64_t n);
  std::vector<bf16> normal_bf16(std::int64_t n, float size = 1);
  std::vector<float> normal_f32(std::int64_t n, float size = 1);
  std::vector<std::uint8_t> bytes(std::int64_t n);
  /// e4m3 codes without the NaN ones.
  std::vector<std::uint8_t> e4m3(std::int64_t n);
  /// e8m0 bytes in [low, high]
  std::vector<std::uint8_t> e8m0(std::int64_t n, int low, int high);

private:
  std::uint64_t state_;
};

} // namespace di::kernels
