// SPDX-License-Identifier: Apache-2.0
// Hyper-connections around a site.
#include "engine/model/residual_streams.hpp"

#include <cstring>

namespace di::engine {

void residual_streams::embed(const step_context& step, std::span<const token_id> tokens) {
  const std::int64_t hidden = step.spec.hidden_size;
  const std::int64_t streams = step.spec.hc_mult;
  bf16* x = x_.ensure(step.rows * streams * hidden);
  float* collapse = collapse_.ensure(step.rows * streams);
  for (const token_id token : tokens) {
    const bf16* from = step.model.embedding() + token * hidden;
    for (std::int64_t s = 0; s < streams; ++s, x += hidden) {
      std::memcpy(x, from, static_cast<std::size_t>(hidden) * sizeof(bf16));
      *collapse++ = s == 0 ? 1.0f : 0.0f; // the first site collapses to stream 0
    }
  }
  pre_.ensure(step.rows * streams);
  post_.ensure(step.rows * streams);
  comb_.ensure(step.rows * streams * streams);
  u_.ensure(step.rows * hidden);
}

result<void> residual_streams::enter(step_context& step, std::int64_t layer, const mix_weights& w,
                                     const bf16* norm, const site_names& names, bf16* in) {
  const model_spec& spec = step.spec;
  const std::int64_t streams = spec.hc_mult;
  DI_TRY_VOID(check_op(
      step.ops.hc_mix(step.stream, x_.data(), step.rows, streams, spec.hidden_size, w.fn, w.scale,
                      w.base, static_cast<int>(spec.hc_sinkhorn_iters),
                      static_cast<float>(spec.hc_eps), static_cast<float>(spec.rms_norm_eps),
                      pre_.data(), post_.data(), comb_.data()),
      "hc_mix"));
  step.visit(layer, names.pre, pre_.data(), streams);
  step.visit(layer, names.post, post_.data(), streams);
  step.visit(layer, names.comb, comb_.data(), streams * streams);
  DI_TRY_VOID(collapse(step)); // with the weights of the site before; the new ones go to the next
  DI_TRY_VOID(normalise(step, u_.data(), norm, step.rows, spec.hidden_size, in));
  step.visit(layer, names.in, in, spec.hidden_size);
  return {};
}

result<void> residual_streams::update(step_context& step, const bf16* y) {
  const model_spec& spec = step.spec;
  DI_TRY_VOID(check_op(step.ops.hc_update(step.stream, x_.data(), y, post_.data(), comb_.data(),
                                          step.rows, spec.hc_mult, spec.hidden_size),
                       "hc_update"));
  std::memcpy(collapse_.data(), pre_.data(),
              static_cast<std::size_t>(step.rows * spec.hc_mult) * sizeof(float));
  return {};
}

result<void> residual_streams::leave(step_context& step, std::int64_t layer, bf16* y) {
  step.visit(layer, "ffn_out", y, step.spec.hidden_size);
  DI_TRY_VOID(update(step, y));
  step.visit(layer, "X_out", x_.data(), step.spec.stream_width());
  step.visit(layer, "pre_out", collapse_.data(), step.spec.hc_mult);
  return {};
}

result<void> residual_streams::collapse(step_context& step) {
  return check_op(step.ops.hc_collapse(step.stream, x_.data(), collapse_.data(), step.rows,
                                       step.spec.hc_mult, step.spec.hidden_size, u_.data()),
                  "hc_collapse");
}

} // namespace di::engine
