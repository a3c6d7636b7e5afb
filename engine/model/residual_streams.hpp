// SPDX-License-Identifier: Apache-2.0
// The residual streams of the rows of a pass and the hyper-connections around its sites. Private to
// engine/model.
#pragma once

#include "engine/model/step_context.hpp"

#include <span>

namespace di::engine {

/// Names under which a probe sees a site: its coefficients, then what it reads.
struct site_names {
  const char *pre, *post, *comb, *in;
};

/// Per site: enter(), the site, update(); the last site of a layer ends with leave() instead.
/// @source spec of the model, 2.3
class residual_streams {
public:
  static constexpr site_names attention_names{"hc0_pre", "hc0_post", "hc0_comb", "attn_in"};
  static constexpr site_names ffn_names{"hc1_pre", "hc1_post", "hc1_comb", "ffn_in"};

  /// All streams of a row start as its token's embedding. @param tokens [rows of the step]
  void embed(const step_context& step, std::span<const token_id> tokens);
  /// Coefficients of a site from the streams as they stand before it, and what it reads: the
  /// streams collapsed by those of the site before, normalised. @param in [rows, hidden]
  result<void> enter(step_context& step, std::int64_t layer, const mix_weights& w, const bf16* norm,
                     const site_names& names, bf16* in);
  /// Spreads the site's output [rows, hidden] over the streams and hands its collapse weights on.
  result<void> update(step_context& step, const bf16* y);
  /// update() with the output of a layer's MoE, shown to the probe.
  result<void> leave(step_context& step, std::int64_t layer, bf16* y);
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
