// SPDX-License-Identifier: Apache-2.0
// RANK's draws: logits of a computed step become tokens. Only what the next launch must know; what
// the tokens mean is settled later.
#include "engine/core/rank_sequence.hpp"
#include "engine/core/speculation.hpp"

#include <algorithm>
#include <utility>

namespace di::engine {

std::span<const drawn_segment> rank_core::draw(std::span<const std::span<const float>> logits,
                                               instant now) {
  DI_CHECK(out_);
  DI_CHECK(unfinished_.empty());
  DI_CHECK_EQ(logits.size(), launched_.segments.size());
  out_ = false;
  drawn_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i)
    drawn_.push_back(draw_segment(launched_.segments[i], logits[i], now));
  close_ended();
  return drawn_;
}

drawn_segment rank_core::draw_segment(const planned_segment& segment, std::span<const float> logits,
                                      instant now) {
  const auto at = sequences_.find(segment.sequence);
  if (at == sequences_.end() || at->second->in_step == 0)
    return {}; // it ended while this was computed
  sequence& s = *at->second;
  drawn_segment result;
  result.sequence = s.key;
  result.kept = static_cast<std::uint32_t>(segment.tokens.size());
  s.in_step = 0;
  unfinished_.push_back(s.key);
  if (!std::exchange(s.draws, false)) {
    s.computed += result.kept;
    to_keep_.push_back(s.key);
    return result;
  }
  const auto guesses = std::span{segment.tokens}.last(segment.drafts);
  auto drawn = verify_drafts(*s.sampler, logits, s.tokens, guesses);
  result.kept -= segment.drafts;
  if (!drawn)
    s.broken = drawn.error();
  else
    result.kept += drawn->accepted;
  s.computed += result.kept;
  if (result.kept < segment.tokens.size())
    kv_->truncate(s.key, s.computed);
  to_keep_.push_back(s.key);
  if (!drawn)
    return result;
  learn_drafts(s, segment.drafts, drawn->accepted);
  for (drawn_token& t : drawn->tokens) {
    s.fresh.push_back(t.token);
    if (s.owner->spec.sampling.logprobs >= 0)
      s.fresh_logprobs.push_back(std::move(t.logprobs));
  }
  s.drawn = now;
  result.drawn = static_cast<std::uint32_t>(drawn->tokens.size());
  return result;
}

void rank_core::keep() {
  for (const sequence_key key : std::exchange(to_keep_, {})) {
    const auto at = sequences_.find(key);
    if (at != sequences_.end() && at->second->state == phase::running)
      keep_rows(*at->second);
  }
}

/// Rows of settled tokens may be cached, and copied by the other choices.
void rank_core::keep_rows(sequence& s) {
  const auto settled = static_cast<std::uint32_t>(s.tokens.size());
  s.computed = kv_->advanced(s.key, std::min(s.computed, settled), s.computed);
  if (s.leads && s.computed >= s.prompt) {
    s.leads = false;
    unpark(s);
  }
}

/// Sequences that ended during the step: nothing computes them any more.
void rank_core::close_ended() {
  freed_ = freed_ || !closing_.empty();
  for (const sequence_key key : std::exchange(closing_, {}))
    kv_->close(key);
}

void rank_core::fail_step(const error& why, instant now, outbox& out) {
  DI_CHECK(out_);
  finish(now, out);
  out_ = false;
  plan_ready_ = false;
  for (const planned_segment& segment : launched_.segments) {
    const auto at = sequences_.find(segment.sequence);
    if (at == sequences_.end() || at->second->in_step == 0)
      continue;
    sequence& s = *at->second;
    s.in_step = 0;
    end(s, {proto::finish_reason::error, -1, 0, why.code, why.what}, now);
    commit(s, s.sent, now, out);
  }
  close_ended();
  out.count("di_rank_steps_failed_total");
  report(out);
}

} // namespace di::engine
