// SPDX-License-Identifier: Apache-2.0
// What the CUDA build offers. Linked everywhere; without nvcc at build time or a device at run time
// every operation answers `unsupported`.
//
// The CUDA runtime is linked statically and the driver never (a machine without one must start).
#pragma once

#include "kernels/kernels.hpp"

namespace di::kernels::cuda {

/// Built with nvcc.
bool compiled();
/// Built with nvcc, and a device answers.
bool available();

/// act_quant of op_table, host memory in and out; blocks until done.
/// @errors unsupported without a device, bad_shape as the CPU twin
status act_quant(const bf16* x, std::int64_t x_stride, std::int64_t rows, std::int64_t dim,
                 std::uint8_t* codes, std::int64_t codes_stride, std::uint8_t* scales,
                 std::int64_t scales_stride);

} // namespace di::kernels::cuda
