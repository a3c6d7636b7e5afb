// SPDX-License-Identifier: Apache-2.0
// What turns the draft layers' output into draft tokens: vocabulary head, sequential Markov bias,
// confidences. Private to engine/model.
#pragma once

#include "engine/model/draft_runner.hpp"
#include "engine/model/step_context.hpp"

#include <vector>

namespace di::engine {

/// One pass is open from begin() to the next begin(). @source spec of the model, 2.10; decode
/// specification, A.1 and A.2
class draft_head {
public:
  /// Logits of the parallel pass, one linear over all rows.
  /// @param hidden  [rows of the step, hidden] before the norm; segments of `block` rows each
  result<void> begin(step_context& step, const bf16* hidden, std::int64_t block);
  /// @param next  [segments] the tokens that the drafts follow
  result<void> draw(step_context& step, std::span<const token_id> next, const draft_picker& pick);

  std::span<const token_id> drafts(std::size_t segment) const;
  std::span<const float> confidences(std::size_t segment) const;

private:
  void embed_previous(step_context& step, std::int64_t k, std::span<const token_id> next);
  result<void> add_bias(step_context& step, std::int64_t k);

  std::int64_t block_ = 0, segments_ = 0;
  buffer<bf16> normed_;       ///< [rows, hidden]
  buffer<float> base_;        ///< [rows, vocab] of the parallel pass
  buffer<bf16> confident_in_; ///< [rows, hidden + rank]
  buffer<bf16> previous_;     ///< [segments, rank] Markov embedding of the token before
  buffer<float> bias_;        ///< [segments, vocab]
  buffer<float> row_;         ///< [segments, vocab] with the bias
  buffer<float> confidence_;  ///< [rows]
  std::vector<token_id> drafts_;
};

} // namespace di::engine
