// SPDX-License-Identifier: Apache-2.0
// The MoE sublayer of one layer on the asking side: router, demand for expert rows, shared expert,
// combination. Private to engine/model.
#pragma once

#include "engine/model/step_context.hpp"

namespace di::engine {

/// One layer's MoE is open from ask() to combine(). Answers are added in ascending expert id, the
/// shared expert last, so who computed them and when does not show.
/// @source spec of the model, 2.8
class moe_site {
public:
  /// Routes the normed rows [rows, hidden] and fills demand().
  result<void> ask(step_context& step, std::int64_t layer, bf16* normed);
  const expert_demand& demand() const noexcept { return demand_; }
  /// Computes the shared expert; may run while answers are on their way. Does nothing the second
  /// time.
  result<void> run_shared(step_context& step);
  /// out [rows, hidden] from the answers and the shared expert.
  result<void> combine(step_context& step, bf16* out);

private:
  std::int64_t layer_ = 0;
  bool shared_done_ = false;
  expert_demand demand_;
  quantised_rows input_, activated_;
  buffer<float> logits_;         ///< [rows, experts]
  buffer<std::int32_t> ids_;     ///< [rows, experts_per_token]
  buffer<float> weights_;        ///< [rows, experts_per_token]
  buffer<bf16> answers_;         ///< [rows, experts_per_token, hidden]
  buffer<bf16> gate_, up_, act_; ///< [rows, inner] of the shared expert
  buffer<bf16> shared_;          ///< [rows, hidden]
};

} // namespace di::engine
