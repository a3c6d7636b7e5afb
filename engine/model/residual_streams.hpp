// SPDX-License-Identifier: Apache-2.0
// The residual streams of the rows of a pass and the hyper-connections around its sites. Private to
// engine/model.
#pragma once

#include "engine/model/step_context.hpp"

#include <span>

namespace di::engine {

/// Per site: mix(), the site on input(), update(). @source spec of the model, 2.3
class residual_streams {
public:
  static constexpr const char* attention_names[3] = {"hc0_pre", "hc0_post", "hc0_comb"};
  static constexpr const char* ffn_names[3] = {"hc1_pre", "hc1_post", "hc1_comb"};

  /// All streams of a row start as its token's embedding. @param tokens [rows of the step]
  void embed(const step_context& step, std::span<const token_id> tokens);
  /// Coefficients of a site from the streams as they stand before it; input() with those of the
  /// site before.
  result<void> mix(step_context& step, std::int64_t layer, const mix_weights& w,
                   const char* const (&names)[3]);
  /// Spreads the site's output [rows, hidden] over the streams and hands its collapse weights on.
  result<void> update(step_context& step, const bf16* y);
  /// input() after the last site.
  result<void> collapse(step_context& step);

  bf16* data() noexcept { return x_.data(); }            ///< [rows, streams, hidden]
  float* weights() noexcept { return collapse_.data(); } ///< [rows, streams] for the next site
  bf16* input() noexcept { return u_.data(); }           ///< [rows, hidden]

private:
  buffer<bf16> x_;
  buffer<float> collapse_;
  buffer<float> pre_, post_; ///< [rows, streams]
  buffer<float> comb_;       ///< [rows, streams, streams]
  buffer<bf16> u_;
};

} // namespace di::engine
