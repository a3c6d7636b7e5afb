// SPDX-License-Identifier: Apache-2.0
// The table of scaled e2m1 values.
#include "kernels/cpu/e2m1_scaled.hpp"

#include "kernels/formats.hpp"

namespace di::kernels {
namespace {

e2m1_scaled_table make_table() {
  e2m1_scaled_table t;
  for (int scale = 0; scale < 256; ++scale)
    for (int code = 0; code < 16; ++code)
      t.value[scale][code] = e2m1_to_f32(static_cast<std::uint8_t>(code))
                             * e8m0_to_f32(static_cast<std::uint8_t>(scale));
  return t;
}

} // namespace

const e2m1_scaled_table e2m1_scaled = make_table();

} // namespace di::kernels
