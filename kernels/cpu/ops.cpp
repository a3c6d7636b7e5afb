// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set's build.
#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/mixing.hpp"
#include "kernels/cpu/rows.hpp"

namespace di::kernels::DI_ISA {

const isa_ops ops = {
    .linear = linear,
    .rms_norm = rms_norm,
    .act_quant = act_quant,
    .pack_rows = pack_rows,
    .unpack_rows = unpack_rows,
    .rope = rope,
    .attention = attention,
    .index_scores = index_scores,
    .hc_mix = hc_mix,
    .hc_collapse = hc_collapse,
    .hc_update = hc_update,
    .route = route,
    .swiglu = swiglu,
    .combine = combine,
    .pool_pairs = pool_pairs,
    .engram_gate = engram_gate,
    .top_k = top_k,
};

} // namespace di::kernels::DI_ISA
