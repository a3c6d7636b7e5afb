// SPDX-License-Identifier: Apache-2.0
// An integer network in the shape of the real one: attention over earlier rows, routed experts in
// each layer, logits. Its output changes for ever if one expert contribution is missing, doubled or
// stale.
#pragma once

#include "engine/core/choice_sampler.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace di::sim::toy {

inline constexpr std::uint32_t layers = 3, experts = 5, experts_per_token = 2, hidden = 32;
inline constexpr std::uint32_t vocab = 11;

constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15U ^ (b + 0x7F4A7C15U + (a << 6) + (a >> 2));
  x ^= x >> 31;
  x *= 0xBF58476D1CE4E5B9U;
  return x ^ (x >> 29);
}

/// Two experts of a row, ascending. @param of  experts of a layer, at least 2
inline std::array<std::int32_t, experts_per_token> route(std::uint64_t row, std::uint32_t layer,
                                                         std::uint32_t of = experts) {
  const auto first = static_cast<std::uint32_t>(mix(row, layer) % of);
  const auto step = static_cast<std::uint32_t>(1 + mix(row, layer + 100) % (of - 1));
  std::array<std::int32_t, 2> ids{static_cast<std::int32_t>(first),
                                  static_cast<std::int32_t>((first + step) % of)};
  std::sort(ids.begin(), ids.end());
  return ids;
}
inline float weight_of(std::uint64_t row, std::int32_t expert) {
  return static_cast<float>(mix(row, static_cast<std::uint64_t>(expert) + 7) % 1000);
}
inline std::uint64_t expert_output(std::uint32_t layer, std::uint32_t expert, std::uint64_t row,
                                   float weight) {
  return mix(mix(mix(layer, expert), row), static_cast<std::uint64_t>(weight));
}

/// Rows of one sequence: what a KV cache would hold.
struct memory {
  std::array<std::vector<std::uint64_t>, layers> keys; ///< [layers][positions]
};

inline std::uint64_t embed(token_id token, std::uint32_t position) {
  return mix(static_cast<std::uint64_t>(token) + 1, position);
}
/// Input of a layer's experts; remembers the row.
inline std::uint64_t attend(memory& m, std::uint32_t layer, std::uint64_t x) {
  const std::uint64_t before = m.keys[layer].empty() ? 0 : m.keys[layer].back();
  m.keys[layer].push_back(mix(x, before));
  return m.keys[layer].back();
}
/// Answers in ascending order of their experts.
inline std::uint64_t combine(std::uint64_t row, const std::uint64_t* answers) {
  std::uint64_t x = row;
  for (std::uint32_t k = 0; k < experts_per_token; ++k)
    x = mix(x, answers[k]);
  return x;
}
inline std::vector<float> logits(std::uint64_t x) {
  std::vector<float> row(vocab);
  for (std::uint32_t t = 0; t < vocab; ++t)
    row[t] = static_cast<float>(mix(x, t) % 4096);
  return row;
}

/// Token 0 ends a choice.
class sampler final : public engine::choice_sampler {
public:
  sampler(const proto::request_spec& spec, std::uint32_t choice) : spec_{spec}, choice_{choice} {}

  result<engine::drawn_token> draw(std::span<const float> row, std::span<const token_id> history,
                                   std::span<const token_id> pending) override {
    const std::uint64_t position = history.size() + pending.size();
    const auto score = [&](std::size_t t) {
      const std::uint64_t noise = mix(mix(spec_.sampling.seed, position), t * 16 + choice_);
      return static_cast<std::uint64_t>(row[t]) + noise % 4096;
    };
    std::size_t best = 0;
    for (std::size_t t = 1; t < row.size(); ++t)
      if (score(t) > score(best))
        best = t;
    engine::drawn_token drawn;
    drawn.token = static_cast<token_id>(best);
    drawn.logprobs.logprob = static_cast<double>(row[best]);
    return drawn;
  }

  proto::choice_end accept(token_id token) override {
    ++output_;
    proto::choice_end end;
    if (token == 0)
      end.reason = proto::finish_reason::stop;
    else if (output_ >= spec_.sampling.max_tokens)
      end.reason = proto::finish_reason::length;
    end.kept_tokens = output_;
    return end;
  }

private:
  proto::request_spec spec_;
  std::uint32_t choice_;
  std::uint32_t output_ = 0;
};

/// What any cluster must answer: one row after the other, alone.
inline std::vector<token_id> generate(const proto::request_spec& spec, std::uint32_t choice,
                                      std::uint32_t of = experts) {
  memory m;
  sampler draws{spec, choice};
  std::vector<token_id> tokens = spec.prompt;
  for (std::size_t position = 0;; ++position) {
    std::uint64_t x = embed(tokens[position], static_cast<std::uint32_t>(position));
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const std::uint64_t row = attend(m, layer, x);
      std::array<std::uint64_t, experts_per_token> answers{};
      const auto ids = route(row, layer, of);
      for (std::uint32_t k = 0; k < experts_per_token; ++k)
        answers[k] =
            expert_output(layer, static_cast<std::uint32_t>(ids[k]), row, weight_of(row, ids[k]));
      x = combine(row, answers.data());
    }
    if (position + 1 < tokens.size())
      continue;
    tokens.push_back(draws.draw(logits(x), tokens, {})->token);
    if (draws.accept(tokens.back()).reason != proto::finish_reason::none)
      return {tokens.begin() + static_cast<std::ptrdiff_t>(spec.prompt.size()), tokens.end()};
  }
}

} // namespace di::sim::toy
