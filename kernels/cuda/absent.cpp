// SPDX-License-Identifier: Apache-2.0
// The CUDA face of a build without nvcc.
#include "kernels/cuda/cuda.hpp"

namespace di::kernels::cuda {

bool compiled() {
  return false;
}

bool available() {
  return false;
}

status act_quant(const bf16*, std::int64_t, std::int64_t, std::int64_t, std::uint8_t*, std::int64_t,
                 std::uint8_t*, std::int64_t) {
  return status::unsupported;
}

} // namespace di::kernels::cuda
