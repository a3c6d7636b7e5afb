// SPDX-License-Identifier: Apache-2.0
// What RANK's core keeps per request and per sequence. Private to rank_core.
#pragma once

#include "engine/core/rank_core.hpp"

#include <algorithm>
#include <optional>

namespace di::engine {

/// Smallest multiple of `unit` that is at least `n`.
constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) noexcept {
  return (n + unit - 1) / unit * unit;
}

struct rank_core::request {
  proto::request_spec spec;
  std::uint32_t attempt = 0;
  std::vector<sequence_key> open;      ///< choices that are not acknowledged to their end
  std::optional<std::uint32_t> cached; ///< [tokens] of the prompt that its first choice began with
};

struct rank_core::sequence {
  sequence_key key = 0;
  request* owner = nullptr;
  std::uint32_t choice = 0;
  sequence_key leader = 0;      ///< a choice whose prompt it may copy; 0: none
  bool leads = false;           ///< others may copy its prompt
  std::uint32_t generation = 0; ///< rises when it loses its KV: older plans are void
  phase state = phase::waiting;
  std::unique_ptr<choice_sampler> sampler;

  std::vector<token_id> tokens; ///< prompt, then settled output
  std::uint32_t prompt = 0;     ///< [tokens]
  std::uint32_t computed = 0;   ///< [rows] in the KV; the next row has this position
  std::uint32_t in_step = 0;    ///< [rows] of the step that is out
  bool draws = false;           ///< in the step that is out
  std::uint64_t last_step = 0;  ///< with rows of it, or when it began to run

  speculation_choice speculation;
  std::vector<token_id> drafts;    ///< guesses behind known() == drafted_at, for the next launch
  std::vector<float> draft_logits; ///< their confidences; empty: none
  std::uint32_t drafted_at = 0;
  bool drafting = false; ///< in the draft pass that may be out

  std::vector<token_id> fresh; ///< drawn, not settled: finish() decides which of them count
  std::vector<proto::position_logprobs> fresh_logprobs; ///< as `fresh`, if asked for
  std::optional<error> broken;                          ///< drawing failed behind `fresh`
  instant drawn;                                        ///< when `fresh` was

  std::uint32_t acknowledged = 0; ///< output index that JOURNAL expects next
  std::uint32_t sent = 0;         ///< output index up to which tokens were sent at least once
  std::deque<proto::position_logprobs> logprobs; ///< of output [acknowledged, output())
  proto::choice_end finish;

  instant assigned, first_row, first_token, last_token, last_sent;
  bool started = false; ///< first_row is set

  bool queued() const noexcept { return state == phase::waiting || state == phase::preempted; }
  /// Settled output.
  std::uint32_t output() const noexcept {
    return static_cast<std::uint32_t>(tokens.size()) - prompt;
  }
  /// Tokens whose rows may be computed.
  std::uint32_t known() const noexcept {
    return static_cast<std::uint32_t>(tokens.size() + fresh.size());
  }
  token_id token(std::uint32_t position) const noexcept {
    return position < tokens.size() ? tokens[position] : fresh[position - tokens.size()];
  }
  /// Output that is settled or may be.
  std::uint32_t drawn_output() const noexcept { return known() - prompt; }
  /// Rows to compute that are in no step.
  std::uint32_t remaining() const noexcept { return known() - computed - in_step; }
  proto::choice_timings timings() const {
    const auto us = [](instant from, instant to) {
      return static_cast<std::uint64_t>(std::max<std::int64_t>(0, (to - from).count() / 1000));
    };
    if (!started)
      return {us(assigned, last_token), 0, 0};
    if (output() == 0)
      return {us(assigned, first_row), us(first_row, last_token), 0};
    return {us(assigned, first_row), us(first_row, first_token), us(first_token, last_token)};
  }
};

} // namespace di::engine
