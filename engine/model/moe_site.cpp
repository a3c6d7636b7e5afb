// SPDX-License-Identifier: Apache-2.0
// The MoE sublayer on the asking side.
#include "engine/model/moe_site.hpp"

#include "messaging/base/trace.hpp"

#include <array>
#include <utility>

namespace di::engine {

namespace {

/// Sorts one row's picks by expert id, weights along; a row has a handful.
void sort_by_expert(std::int32_t* ids, float* weights, std::int64_t count) {
  for (std::int64_t i = 1; i < count; ++i)
    for (std::int64_t j = i; j > 0 && ids[j] < ids[j - 1]; --j) {
      std::swap(ids[j], ids[j - 1]);
      std::swap(weights[j], weights[j - 1]);
    }
}

} // namespace

result<void> moe_site::ask(step_context& step, std::int64_t layer, bf16* normed) {
  const model_spec& spec = step.spec;
  const moe_weights& w = step.model.layers()[static_cast<std::size_t>(layer)].moe;
  const std::int64_t experts = spec.experts(layer);
  const std::int64_t picks = spec.experts_per_token(layer);
  layer_ = layer;
  shared_done_ = false;
  DI_TRY_VOID(quantise(step, normed, spec.hidden_size, step.rows, spec.hidden_size, input_));
  const std::array jobs{linear(w.gate, normed, step.rows, logits_.ensure(step.rows * experts))};
  DI_TRY_VOID(run_linears(step, jobs));
  std::int32_t* ids = ids_.ensure(step.rows * picks);
  float* weights = weights_.ensure(step.rows * picks);
  DI_TRY_VOID(check_op(step.ops.route(step.stream, logits_.data(), w.gate_bias, step.rows, experts,
                                      picks, static_cast<float>(spec.gate_temp),
                                      static_cast<float>(spec.routed_scaling_factor), ids, weights),
                       "route"));
  step.visit(layer, "router_ids", ids, picks);
  step.visit(layer, "router_weights", weights, picks);
  for (std::int64_t r = 0; r < step.rows; ++r)
    sort_by_expert(ids + r * picks, weights + r * picks, picks);

  demand_.layer = layer_id{static_cast<std::uint32_t>(layer)};
  demand_.rows = static_cast<std::uint32_t>(step.rows);
  demand_.experts_per_token = static_cast<std::uint32_t>(picks);
  demand_.hidden = static_cast<std::uint32_t>(spec.hidden_size);
  const auto rows = static_cast<std::size_t>(step.rows);
  const auto hidden = static_cast<std::size_t>(spec.hidden_size);
  const auto slots = rows * static_cast<std::size_t>(picks);
  demand_.codes = {input_.codes.data(), rows * hidden};
  demand_.scales = {input_.scales.data(), rows * (hidden / 32)};
  demand_.experts = {ids, slots};
  demand_.weights = {weights, slots};
  demand_.answers = {answers_.ensure(static_cast<std::int64_t>(slots * hidden)), slots * hidden};
  return {};
}

result<void> moe_site::run_shared(step_context& step) {
  if (shared_done_)
    return {};
  const expert_weights& w = step.model.layers()[static_cast<std::size_t>(layer_)].moe.shared;
  const std::int64_t inner = w.w1.out;
  bf16* gate = gate_.ensure(step.rows * inner);
  bf16* up = up_.ensure(step.rows * inner);
  bf16* act = act_.ensure(step.rows * inner);
  const std::array first{linear(w.w1, input_, gate), linear(w.w3, input_, up)};
  DI_TRY_VOID(run_linears(step, first));
  DI_TRY_VOID(
      check_op(step.ops.swiglu(step.stream, gate, up, nullptr,
                               static_cast<float>(step.spec.swiglu_limit), step.rows, inner, act),
               "swiglu"));
  DI_TRY_VOID(quantise(step, act, inner, step.rows, inner, activated_));
  const std::array second{
      linear(w.w2, activated_, shared_.ensure(step.rows * step.spec.hidden_size))};
  DI_TRY_VOID(run_linears(step, second));
  shared_done_ = true;
  return {};
}

result<void> moe_site::combine(step_context& step, bf16* out) {
  DI_TRY_VOID(run_shared(step));
  const trace::span adding{trace::kind::combine, {.rows = static_cast<std::uint32_t>(step.rows)}};
  return check_op(step.ops.combine(step.stream, answers_.data(), shared_.data(), step.rows,
                                   demand_.experts_per_token, step.spec.hidden_size, out),
                  "combine");
}

} // namespace di::engine
