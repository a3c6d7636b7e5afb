// SPDX-License-Identifier: Apache-2.0
// Sample-then-match.
#include "engine/core/speculation.hpp"

namespace di::engine {

result<verified> verify_drafts(choice_sampler& sampler, std::span<const float> logits,
                               std::span<const token_id> history,
                               std::span<const token_id> drafts) {
  const std::size_t rows = drafts.size() + 1;
  if (logits.empty() || logits.size() % rows != 0)
    return fail(ec::bad_argument, "{} logits are no {} rows", logits.size(), rows);
  const std::size_t vocab = logits.size() / rows;
  verified v;
  for (std::size_t j = 0; j < rows; ++j) {
    DI_TRY(drawn_token drawn,
           sampler.draw(logits.subspan(j * vocab, vocab), history, drafts.first(j)));
    const bool matches = j < drafts.size() && drawn.token == drafts[j];
    v.tokens.push_back(std::move(drawn));
    if (!matches)
      break;
    ++v.accepted;
  }
  return v;
}

} // namespace di::engine
