// SPDX-License-Identifier: Apache-2.0
// RANK's steps: which rows go into the next one, and what its logits mean.
#include "engine/core/rank_sequence.hpp"

#include <algorithm>

namespace di::engine {

std::uint64_t rank_core::kv_need(const sequence& s) const {
  return round_up(std::uint64_t{s.prompt} + s.owner->spec.sampling.max_tokens,
                  options_.page_tokens);
}

std::uint32_t rank_core::tokens_max(sequence_key key) const {
  const sequence& s = *sequences_.at(key);
  return s.prompt + s.owner->spec.sampling.max_tokens;
}

bool rank_core::is_paused(const sequence& s) const {
  return s.output() - s.acknowledged >= options_.unacknowledged_max;
}

bool rank_core::has_work() const {
  if (!waiting_.empty() && running_.empty())
    return true;
  return std::any_of(running_.begin(), running_.end(),
                     [this](sequence_key key) { return !is_paused(*sequences_.at(key)); })
         || (!waiting_.empty() && running_.size() < options_.running_max
             && kv_used_ + kv_need(*sequences_.at(waiting_.front())) <= options_.kv_tokens);
}

/// In order of arrival: nobody overtakes a large request, so it cannot starve.
void rank_core::admit_waiting() {
  while (!waiting_.empty() && running_.size() < options_.running_max) {
    sequence& s = *sequences_.at(waiting_.front());
    const std::uint64_t need = kv_need(s);
    if (kv_used_ + need > options_.kv_tokens)
      return;
    kv_used_ += need;
    s.state = phase::running;
    running_.push_back(s.key);
    waiting_.pop_front();
  }
}

step_plan rank_core::plan(instant now) {
  DI_CHECK(in_step_.empty());
  admit_waiting();
  step_plan plan;
  const bool prompts = std::any_of(running_.begin(), running_.end(), [this](sequence_key key) {
    return sequences_.at(key)->remaining() > 1;
  });
  const std::uint32_t kept =
      prompts ? std::min(options_.prefill_rows_min, options_.step_rows - 1) : 0;
  add_decode_rows(plan, options_.step_rows - kept, now);
  add_prefill_rows(plan, now);
  if (plan.segments.empty())
    return plan;
  plan.step = epoch{++step_};
  rows_ += plan.rows;
  return plan;
}

/// One row each; if not all fit, the next step goes on where this one stopped.
void rank_core::add_decode_rows(step_plan& plan, std::uint32_t cap, instant now) {
  const std::size_t n = running_.size();
  std::size_t looked = 0;
  for (; looked < n && plan.rows < cap; ++looked) {
    sequence& s = *sequences_.at(running_[(decode_turn_ + looked) % n]);
    if (s.remaining() == 1 && !is_paused(s))
      add_rows(plan, s, 1, now);
  }
  decode_turn_ = looked < n ? (decode_turn_ + looked) % n : 0;
}

void rank_core::add_prefill_rows(step_plan& plan, instant now) {
  for (const sequence_key key : running_) {
    if (plan.rows == options_.step_rows)
      return;
    sequence& s = *sequences_.at(key);
    if (s.remaining() <= 1 || is_paused(s))
      continue;
    std::uint32_t rows = std::min(s.remaining(), options_.step_rows - plan.rows);
    if (options_.prefill_rows_max > 0)
      rows = std::min(rows, options_.prefill_rows_max);
    add_rows(plan, s, rows, now);
    plan.prefill_rows += rows;
  }
}

void rank_core::add_rows(step_plan& plan, sequence& s, std::uint32_t rows, instant now) {
  if (!s.started) {
    s.started = true;
    s.first_row = now;
  }
  planned_segment segment;
  segment.sequence = s.key;
  segment.first_position = s.computed;
  segment.tokens.assign(s.tokens.begin() + s.computed, s.tokens.begin() + s.computed + rows);
  segment.draws = rows == s.remaining();
  s.in_step = rows;
  plan.rows += rows;
  plan.segments.push_back(std::move(segment));
  in_step_.push_back(s.key);
}

std::optional<token_id> rank_core::advance(sequence& s, std::span<const float> logits,
                                           instant now) {
  s.computed += s.in_step;
  if (s.remaining() > 0)
    return std::nullopt;
  const proto::sampling_params& wanted = s.owner->spec.sampling;
  auto drawn = s.sampler->draw(logits, s.tokens, {});
  if (!drawn) {
    end(s, {proto::finish_reason::error, -1, 0, drawn.error().code, drawn.error().what}, now);
    return std::nullopt;
  }
  s.tokens.push_back(drawn->token);
  if (wanted.logprobs >= 0)
    s.logprobs.push_back(std::move(drawn->logprobs));
  if (s.output() == 1)
    s.first_token = now;
  s.last_token = now;
  proto::choice_end finish = s.sampler->accept(drawn->token);
  if (finish.reason == proto::finish_reason::none && s.output() >= wanted.max_tokens)
    finish.reason = proto::finish_reason::length;
  if (finish.reason != proto::finish_reason::none)
    end(s, std::move(finish), now);
  return drawn->token;
}

std::vector<token_id> rank_core::finish_step(std::span<const std::span<const float>> logits,
                                             instant now, outbox& out) {
  DI_CHECK_EQ(logits.size(), in_step_.size());
  std::vector<token_id> drawn;
  // Cleared first: a sequence that ends below is in no step any more.
  const std::vector<sequence_key> computed = std::exchange(in_step_, {});
  for (std::size_t i = 0; i < computed.size(); ++i) {
    const auto at = sequences_.find(computed[i]);
    if (at == sequences_.end() || at->second->state != phase::running) {
      dropped_.push_back(computed[i]); // withdrawn while it was computed
      continue;
    }
    sequence& s = *at->second;
    if (const auto token = advance(s, logits[i], now))
      drawn.push_back(*token);
    s.in_step = 0;
    commit(s, s.sent, now, out);
  }
  out.count("di_rank_steps_total");
  out.count("di_rank_tokens_total", static_cast<double>(drawn.size()));
  report(out);
  return drawn;
}

void rank_core::fail_step(const error& why, instant now, outbox& out) {
  const std::vector<sequence_key> computed = std::exchange(in_step_, {});
  for (const sequence_key key : computed) {
    const auto at = sequences_.find(key);
    if (at == sequences_.end() || at->second->state != phase::running) {
      dropped_.push_back(key);
      continue;
    }
    sequence& s = *at->second;
    s.in_step = 0;
    end(s, {proto::finish_reason::error, -1, 0, why.code, why.what}, now);
    commit(s, s.sent, now, out);
  }
  out.count("di_rank_steps_failed_total");
  report(out);
}

std::vector<sequence_key> rank_core::take_dropped() {
  return std::exchange(dropped_, {});
}

} // namespace di::engine
