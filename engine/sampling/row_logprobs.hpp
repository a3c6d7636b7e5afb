// SPDX-License-Identifier: Apache-2.0
// Log probabilities of a row: of the picked token and of the most likely ones.
#pragma once

#include "engine/sampling/sampler.hpp"

#include <cstddef>
#include <span>

namespace di::engine {

/// Fills `out.logprob` for `out.id` and `out.top` from a row of logits.
///
/// @param row         [vocab] fp32 without NaN or +infinity, at least one finite value
/// @param maxima      [ceil(vocab / 256)] its block maxima
/// @param normalise   true: value = logit - log_sum_exp(row); false: the logit itself
/// @param count       entries of `top`: value descending, then id ascending
void report_row(std::span<const float> row, std::span<const float> maxima, bool normalise,
                std::size_t count, token_choice& out);

/// The same from values in double; -infinity marks tokens that were dropped. One slow pass.
void report_values(std::span<const double> values, bool normalise, std::size_t count,
                   token_choice& out);

} // namespace di::engine
