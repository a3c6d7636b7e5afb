// SPDX-License-Identifier: Apache-2.0
// The filters min_p, top_k and top_p: which tokens of a prepared row may still be drawn.
#pragma once

#include "engine/sampling/sampler.hpp"

#include <span>

namespace di::engine {

/// A row after masks, bias and penalties: fp32 logits, and beside them the tokens whose logit was
/// changed.
struct prepared_row {
  std::span<const float> base;   ///< [vocab] -infinity for masked tokens and for those in `patches`
  std::span<const float> maxima; ///< [ceil(vocab / 256)] block maxima of base
  std::span<const sample_scratch::patch> patches;
  double divisor = 1.0; ///< temperature, 1 when greedy
  double highest = 0.0; ///< greatest scaled logit; finite

  double scaled(double logit) const noexcept { return logit / divisor; }
  double at(std::size_t i) const noexcept { return scaled(static_cast<double>(base[i])); }
};

/// The tokens that min_p, then top_k, then top_p leave.
///
/// @cost     one pass for top_k, two for top_p; candidates are sorted only where the cut may lie
/// @source   decode specification, C.4: integer masses floor(e^(l - max) * 2^40), ties by lower id
filter_cut find_cut(const sampling_params& params, const prepared_row& row,
                    sample_scratch& scratch);

} // namespace di::engine
