// SPDX-License-Identifier: Apache-2.0
// All sixteen e2m1 values times each of the 256 e8m0 scales: a lookup instead of a multiplication.
#pragma once

#include <cstdint>

namespace di::kernels {

struct e2m1_scaled_table {
  alignas(64) float value[256][16]; ///< [scale byte, code]
};

/// Filled before main by code that any machine can run.
extern const e2m1_scaled_table e2m1_scaled;

} // namespace di::kernels
