// SPDX-License-Identifier: Apache-2.0
// Row-wise kernel calls on random inputs: case(table, stream, first row, rows) gives the output
// bytes of those rows, `row_size` each. Inputs span subnormals, zeros and large scales.
#pragma once

#include "kernels/kernels.hpp"

#include <functional>
#include <string>
#include <vector>

namespace di::kernels {

struct row_case {
  std::string name;
  std::int64_t rows; ///< rows of input that exist
  std::size_t row_size;
  std::function<std::vector<std::byte>(const op_table&, stream&, std::int64_t first,
                                       std::int64_t rows)>
      run;
};

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

/// Every row-wise kernel with odd and even widths. @param rows  rows of input to make
std::vector<row_case> all_row_cases(std::int64_t rows);

} // namespace di::kernels
