// SPDX-License-Identifier: Apache-2.0
// The slow twin of sampler::pick: every step on a dense row, a full sort, noise for every token.
// For tests.
#pragma once

#include "engine/sampling/sampler.hpp"

#include <span>

namespace di::engine {

/// Picks the same token as sampler::pick, by the book. @pre params are valid and the row is finite
/// or -infinity
result<token_choice> pick_slowly(const sampling_params& params, std::span<const token_id> eos_ids,
                                 const sample_row& row);

} // namespace di::engine
