// SPDX-License-Identifier: Apache-2.0
// Draft tokens from the draft layers' output.
#include "engine/model/draft_head.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>

namespace di::engine {

namespace {

constexpr std::int64_t scan_block = 64; ///< tokens whose maximum is taken as one
constexpr float not_offered = -std::numeric_limits<float>::infinity();

float highest_of(const float* from, std::int64_t count) {
  std::array<float, 8> lanes; // independent maxima, so that the loop is not one chain
  lanes.fill(not_offered);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (std::size_t l = 0; l < 8; ++l)
      lanes[l] = std::max(lanes[l], from[i + static_cast<std::int64_t>(l)]);
  for (; i < count; ++i)
    lanes[0] = std::max(lanes[0], from[i]);
  return *std::max_element(lanes.begin(), lanes.end());
}

} // namespace

bool draft_head::restricted(const step_context& step) const noexcept {
  return options_.candidates > 0 && step.spec.vocab_size >= 4 * options_.candidates;
}

result<void> draft_head::begin(step_context& step, const bf16* hidden, std::int64_t block) {
  const model_spec& spec = step.spec;
  const std::int64_t width = spec.hidden_size + spec.dspark_markov_rank;
  block_ = block;
  segments_ = step.rows / block;
  drafts_.assign(static_cast<std::size_t>(step.rows), 0);
  best_.resize(static_cast<std::size_t>(segments_));
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

result<void> draft_head::bias_all(step_context& step, std::int64_t k) {
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

/// Tokens no worse than the candidates-th best block maximum; of equals at the threshold the lower
/// ids.
void draft_head::find_best(const step_context& step, std::int64_t row,
                           std::vector<std::int32_t>& best) {
  const std::int64_t vocab = step.spec.vocab_size;
  const float* logits = base_.data() + row * vocab;
  maxima_.clear();
  for (std::int64_t t = 0; t < vocab; t += scan_block)
    maxima_.push_back(highest_of(logits + t, std::min(scan_block, vocab - t)));
  sorted_ = maxima_;
  const auto rank = std::min(static_cast<std::ptrdiff_t>(options_.candidates),
                             static_cast<std::ptrdiff_t>(sorted_.size()))
                    - 1;
  std::nth_element(sorted_.begin(), sorted_.begin() + rank, sorted_.end(), std::greater<>{});
  const float threshold = sorted_[static_cast<std::size_t>(rank)];
  const auto most = static_cast<std::size_t>(4 * options_.candidates);
  best.clear();
  for (std::size_t b = 0; b < maxima_.size(); ++b) {
    if (maxima_[b] < threshold)
      continue;
    const auto first = static_cast<std::int64_t>(b) * scan_block;
    for (std::int64_t t = first; t < std::min(first + scan_block, vocab); ++t)
      if (logits[t] >= threshold && best.size() < most)
        best.push_back(static_cast<std::int32_t>(t));
  }
}

/// The bias of the best tokens only: their rows of the matrix are gathered, all others read
/// -infinity.
result<void> draft_head::bias_best(step_context& step, std::int64_t k) {
  const std::int64_t vocab = step.spec.vocab_size;
  const std::int64_t rank = step.spec.dspark_markov_rank;
  std::int64_t total = 0;
  for (std::int64_t s = 0; s < segments_; ++s) {
    auto& best = best_[static_cast<std::size_t>(s)];
    find_best(step, s * block_ + k, best);
    total += static_cast<std::int64_t>(best.size());
  }
  bf16* gathered = best_weights_.ensure(total * rank);
  float* bias = bias_.ensure(total);
  const auto* head = static_cast<const bf16*>(step.model.drafts()->markov_head.data);
  jobs_.clear();
  std::int64_t at = 0;
  for (std::int64_t s = 0; s < segments_; ++s) {
    const auto& best = best_[static_cast<std::size_t>(s)];
    const auto count = static_cast<std::int64_t>(best.size());
    const kernels::weight w{kernels::weight_kind::bf16, gathered + at * rank, nullptr, count, rank};
    jobs_.push_back(linear(w, previous_.data() + s * rank, 1, bias + at));
    for (const std::int32_t token : best)
      std::memcpy(gathered + at++ * rank, head + token * rank,
                  static_cast<std::size_t>(rank) * sizeof(bf16));
  }
  DI_TRY_VOID(run_linears(step, jobs_));
  float* row = row_.ensure(segments_ * vocab);
  std::fill(row, row + segments_ * vocab, not_offered);
  for (std::int64_t s = 0; s < segments_; ++s) {
    const float* base = base_.data() + (s * block_ + k) * vocab;
    for (const std::int32_t token : best_[static_cast<std::size_t>(s)])
      row[s * vocab + token] = base[token] + *bias++;
  }
  return {};
}

result<void> draft_head::draw(step_context& step, std::span<const token_id> next,
                              const draft_picker& pick) {
  const std::int64_t vocab = step.spec.vocab_size;
  for (std::int64_t k = 0; k < block_; ++k) {
    embed_previous(step, k, next);
    DI_TRY_VOID(restricted(step) ? bias_best(step, k) : bias_all(step, k));
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
