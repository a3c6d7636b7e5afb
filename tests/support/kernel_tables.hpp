// SPDX-License-Identifier: Apache-2.0
// The kernel implementations that this machine can run, for tests that go over all of them.
#pragma once

#include "kernels/kernels.hpp"

#include <vector>

namespace di::kernels {

inline std::vector<const op_table*> all_tables() {
  return {&ref_ops()};
}

} // namespace di::kernels
