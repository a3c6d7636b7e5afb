// SPDX-License-Identifier: Apache-2.0
// The production choice_sampler: engine/sampling draws, the stop watch over the tokenizer's text
// ends.
#pragma once

#include "engine/core/choice_sampler.hpp"
#include "engine/sampling/sampling_params.hpp"
#include "engine/text/tokenizer.hpp"

#include <memory>
#include <vector>

namespace di::engine {

/// What travels, as the sampler takes it. Ranges are checked by sampler::make.
sampling_params to_sampling_params(const proto::sampling_params& p);

/// Bytes that a token adds to a completion's text: special tokens show nothing.
std::string_view shown_bytes(const tokenizer& words, token_id id);

/// @param words  outlives the samplers; null: no text, so no stop strings (requests with some are
///               refused)
sampler_factory make_text_samplers(const tokenizer* words, std::size_t vocab,
                                   std::vector<token_id> eos_ids);

} // namespace di::engine
