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

/// Every row-wise kernel with odd and even widths. @param rows  rows of input to make
std::vector<row_case> all_row_cases(std::int64_t rows);

} // namespace di::kernels
