// SPDX-License-Identifier: Apache-2.0
// What RANK's core needs from sampling: a token out of a row of logits, and whether the choice has
// ended. The production one is text_sampler; simulations bring a toy.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/sampling.hpp"

#include <functional>
#include <memory>
#include <span>

namespace di::engine {

/// A drawn token and, if the request asks for them, the log probabilities at its position.
struct drawn_token {
  token_id token = 0;
  proto::position_logprobs logprobs;
};

/// State of one choice of one request. Used on the thread of its rank only.
class choice_sampler {
public:
  virtual ~choice_sampler() = default;
  /// Draws the token at position history.size() + pending.size(). Changes nothing that a later draw
  /// sees.
  /// @param logits   [vocab]
  /// @param history  prompt and output so far; all output tokens went through accept()
  /// @param pending  tokens behind them that are not accepted yet: drafts, or tokens drawn already
  /// @errors bad_argument (a logit that is no number), internal
  virtual result<drawn_token> draw(std::span<const float> logits, std::span<const token_id> history,
                                   std::span<const token_id> pending) = 0;
  /// Draws a draft of that token from other logits, with the same rules and the same noise, so that
  /// equal logits give equal tokens. No log probabilities.
  virtual result<token_id> draw_draft(std::span<const float> logits,
                                      std::span<const token_id> history,
                                      std::span<const token_id> pending) {
    DI_TRY(const drawn_token drawn, draw(logits, history, pending));
    return drawn.token;
  }
  /// Takes the next output token. reason != none if the choice ends with it.
  virtual proto::choice_end accept(token_id token) = 0;
};

/// Makes the sampler of a choice. @errors bad_argument: parameters out of range
using sampler_factory = std::function<result<std::unique_ptr<choice_sampler>>(
    const proto::request_spec& spec, std::uint32_t choice)>;

} // namespace di::engine
