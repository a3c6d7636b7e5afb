// SPDX-License-Identifier: Apache-2.0
// What a rank computes for a known token sequence, as one number: ranks whose numbers differ do not
// compute the same bits.
#pragma once

#include "engine/model/loaded_model.hpp"
#include "messaging/base/result.hpp"

#include <memory>
#include <string>

namespace di::engine {

/// Runs a few rows of one sequence through all layers: a chunk of a prompt, then two rows one by
/// one, then the digest over the bits of all logits. Two experts of each layer answer for all
/// (expert number modulo two), so that a start reads no more than that; their pages are let go of.
///
/// It proves kernels, weights that it touched and this host's arithmetic; not links, and not the
/// other experts.
///
/// @param threads  of the streams that it makes for itself; at least 1
/// @return         16 hexadecimal digits
/// @errors         those of the runners; kv_exhausted: no memory for one page
/// @cost           some steps of 1 to 6 rows: a few milliseconds with the demo model
result<std::string> self_test(std::shared_ptr<const loaded_model> model, unsigned threads);

} // namespace di::engine
