// SPDX-License-Identifier: Apache-2.0
// Draft tokens from the draft layers' output.
#include "engine/model/draft_head.hpp"

#include <array>
#include <cstring>

namespace di::engine {

result<void> draft_head::begin(step_context& step, const bf16* hidden, std::int64_t block) {
  const model_spec& spec = step.spec;
  const std::int64_t width = spec.hidden_size + spec.dspark_markov_rank;
  block_ = block;
  segments_ = step.rows / block;
  drafts_.assign(static_cast<std::size_t>(step.rows), 0);
  bf16* in = confident_in_.ensure(step.rows * width);
  for (std::int64_t r = 0; r < step.rows; ++r)
    std::memcpy(in + r * width, hidden + r * spec.hidden_size,
                static_cast<std::size_t>(spec.hidden_size) * sizeof(bf16));
  DI_TRY_VOID(normalise(step, hidden, step.model.drafts()->norm, step.rows, spec.hidden_size,
                        normed_.ensure(step.rows * spec.hidden_size)));
  float* base = base_.ensure(step.rows * spec.vocab_size);
  const std::array jobs{linear(step.model.head(), normed_.data(), step.rows, base)};
  DI_TRY_VOID(run_linears(step, jobs));
  step.visit(spec.all_layers(), "draft_base", base, spec.vocab_size);
  return {};
}

/// Of the token before draft k in every segment.
void draft_head::embed_previous(step_context& step, std::int64_t k,
                                std::span<const token_id> next) {
  const model_spec& spec = step.spec;
  const std::int64_t rank = spec.dspark_markov_rank;
  bf16* to = previous_.ensure(segments_ * rank);
  for (std::int64_t s = 0; s < segments_; ++s) {
    const token_id before = k == 0 ? next[static_cast<std::size_t>(s)]
                                   : drafts_[static_cast<std::size_t>(s * block_ + k - 1)];
    const bf16* from = step.model.drafts()->markov_embed + before * rank;
    const auto bytes = static_cast<std::size_t>(rank) * sizeof(bf16);
    std::memcpy(to + s * rank, from, bytes);
    std::memcpy(confident_in_.data() + (s * block_ + k) * (spec.hidden_size + rank)
                    + spec.hidden_size,
                from, bytes);
  }
}

result<void> draft_head::add_bias(step_context& step, std::int64_t k) {
  const std::int64_t vocab = step.spec.vocab_size;
  float* bias = bias_.ensure(segments_ * vocab);
  float* row = row_.ensure(segments_ * vocab);
  const std::array jobs{
      linear(step.model.drafts()->markov_head, previous_.data(), segments_, bias)};
  DI_TRY_VOID(run_linears(step, jobs));
  for (std::int64_t s = 0; s < segments_; ++s) {
    const float* base = base_.data() + (s * block_ + k) * vocab;
    for (std::int64_t t = 0; t < vocab; ++t)
      row[s * vocab + t] = base[t] + bias[s * vocab + t];
  }
  return {};
}

result<void> draft_head::draw(step_context& step, std::span<const token_id> next,
                              const draft_picker& pick) {
  const std::int64_t vocab = step.spec.vocab_size;
  for (std::int64_t k = 0; k < block_; ++k) {
    embed_previous(step, k, next);
    DI_TRY_VOID(add_bias(step, k));
    for (std::int64_t s = 0; s < segments_; ++s) {
      DI_TRY(const token_id drawn,
             pick(static_cast<std::size_t>(s), static_cast<std::size_t>(k),
                  {row_.data() + s * vocab, static_cast<std::size_t>(vocab)}));
      if (drawn < 0 || drawn >= vocab)
        return fail(ec::bad_argument, "draft {} of segment {} is token {}, the vocabulary has {}",
                    k, s, drawn, vocab);
      drafts_[static_cast<std::size_t>(s * block_ + k)] = drawn;
    }
  }
  const std::array jobs{linear(step.model.drafts()->confidence, confident_in_.data(), step.rows,
                               confidence_.ensure(step.rows))};
  return run_linears(step, jobs);
}

std::span<const token_id> draft_head::drafts(std::size_t segment) const {
  DI_CHECK(segment < static_cast<std::size_t>(segments_));
  return std::span{drafts_}.subspan(segment * static_cast<std::size_t>(block_),
                                    static_cast<std::size_t>(block_));
}

std::span<const float> draft_head::confidences(std::size_t segment) const {
  DI_CHECK(segment < static_cast<std::size_t>(segments_) && confidence_.data() != nullptr);
  return {confidence_.data() + segment * static_cast<std::size_t>(block_),
          static_cast<std::size_t>(block_)};
}

} // namespace di::engine
