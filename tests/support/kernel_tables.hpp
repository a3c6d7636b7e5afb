// SPDX-License-Identifier: Apache-2.0
// The kernel implementations that this machine can run, for tests that go over all of them.
#pragma once

#include "kernels/kernels.hpp"

#include <vector>

namespace di::kernels {

/// The CPU builds; the reference is not among them.
inline std::vector<const op_table*> cpu_tables() {
  std::vector<const op_table*> all;
  for (const isa level : {isa::portable, isa::avx2, isa::avx512})
    if (isa_available(level))
      all.push_back(&cpu_ops(level));
  return all;
}

inline std::vector<const op_table*> all_tables() {
  std::vector<const op_table*> all = cpu_tables();
  all.insert(all.begin(), &ref_ops());
  return all;
}

} // namespace di::kernels
