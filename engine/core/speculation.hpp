// SPDX-License-Identifier: Apache-2.0
// Which drafts stand: sample-then-match. Pure.
#pragma once

#include "engine/core/choice_sampler.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

/// Outcome of verifying the drafts of one choice.
struct verified {
  std::vector<drawn_token> tokens; ///< [accepted + 1]: the accepted drafts, then the target's own
  std::uint32_t accepted = 0;      ///< drafts that the target drew itself
};

/// Draws the target's token of row after row, as if there were no drafts, and goes on while it is
/// the draft. So tokens and logprobs are those of a run that never drafts, whatever the drafts are
/// and however many were verified. The caller hands `tokens` to sampler.accept() one by one and
/// drops what comes after an end.
///
/// @param logits   [drafts + 1, vocab] row j was computed behind drafts[0, j)
/// @param history  prompt and output so far, the first row's input token counted in
/// @errors         bad_argument (the logits are no whole number of rows), those of draw()
/// @source         decode specification, A.4
result<verified> verify_drafts(choice_sampler& sampler, std::span<const float> logits,
                               std::span<const token_id> history, std::span<const token_id> drafts);

/// Rows of the verified segment that stay: the input token and the accepted drafts.
constexpr std::uint32_t rows_kept(const verified& v) noexcept {
  return v.accepted + 1;
}

/// Drafts that are worth verifying when `room` more tokens may come: the last one needs none.
constexpr std::uint32_t drafts_wanted(std::uint32_t drafts, std::uint32_t room) noexcept {
  return room == 0 ? 0 : drafts < room - 1 ? drafts : room - 1;
}

} // namespace di::engine
