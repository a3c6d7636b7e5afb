// SPDX-License-Identifier: Apache-2.0
// Chooses the build of the CPU kernels.
#include "kernels/kernels.hpp"

namespace di::kernels {

bool isa_available(isa) {
  return true;
}

const op_table& cpu_ops(isa) {
  return ref_ops();
}

const op_table& best_cpu_ops() {
  return ref_ops();
}

} // namespace di::kernels
