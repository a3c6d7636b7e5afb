// SPDX-License-Identifier: Apache-2.0
// Sparse attention and index scores of one build.
#pragma once

#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/vec.hpp"

namespace di::kernels::DI_ISA {

void attention(cpu_stream&, const attention_args&);
void index_scores(cpu_stream&, const index_score_args&);

} // namespace di::kernels::DI_ISA
