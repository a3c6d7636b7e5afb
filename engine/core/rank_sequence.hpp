// SPDX-License-Identifier: Apache-2.0
// What RANK's core keeps per request and per sequence. Private to rank_core.
#pragma once

#include "engine/core/rank_core.hpp"

#include <algorithm>

namespace di::engine {

/// Smallest multiple of `unit` that is at least `n`.
constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) noexcept {
  return (n + unit - 1) / unit * unit;
}

struct rank_core::request {
  proto::request_spec spec;
  std::uint32_t attempt = 0;
  std::vector<sequence_key> open; ///< choices that are not acknowledged to their end
};

struct rank_core::sequence {
  sequence_key key = 0;
  request* owner = nullptr;
  std::uint32_t choice = 0;
  phase state = phase::waiting;
  std::unique_ptr<choice_sampler> sampler;

  std::vector<token_id> tokens; ///< prompt, then output
  std::uint32_t prompt = 0;     ///< [tokens]
  std::uint32_t computed = 0;   ///< [rows] in the KV; the next row has this position
  std::uint32_t in_step = 0;    ///< [rows] of the step that is out

  std::uint32_t acknowledged = 0; ///< output index that JOURNAL expects next
  std::uint32_t sent = 0;         ///< output index up to which tokens were sent at least once
  std::deque<proto::position_logprobs> logprobs; ///< of output [acknowledged, output())
  proto::choice_end finish;

  instant assigned, first_row, first_token, last_token, last_sent;
  bool started = false; ///< first_row is set

  std::uint32_t output() const noexcept {
    return static_cast<std::uint32_t>(tokens.size()) - prompt;
  }
  std::uint32_t remaining() const noexcept {
    return static_cast<std::uint32_t>(tokens.size()) - computed;
  }
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
