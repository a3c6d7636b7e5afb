// SPDX-License-Identifier: Apache-2.0
// `linear` as other kernels of the same build use it.
#pragma once

#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/vec.hpp"

namespace di::kernels::DI_ISA {

void linear(cpu_stream&, const linear_job* jobs, std::int64_t count);

} // namespace di::kernels::DI_ISA
