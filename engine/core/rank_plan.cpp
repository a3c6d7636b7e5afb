// SPDX-License-Identifier: Apache-2.0
// RANK's plans: which sequences run, and how many rows of which go into the next step.
#include "engine/core/rank_sequence.hpp"

#include <algorithm>
#include <utility>

namespace di::engine {

bool rank_core::is_paused(const sequence& s) const {
  return s.drawn_output() - s.acknowledged >= options_.unacknowledged_max;
}

/// Room that running sequences will need for what is known of them and have not taken yet.
std::uint64_t rank_core::promised() const {
  std::uint64_t tokens = 0;
  for (const sequence_key key : running_) {
    const std::uint64_t need = round_up(sequences_.at(key)->known() + 1ULL, kv_->page_tokens());
    const std::uint64_t held = kv_->tokens_held(key);
    tokens += need > held ? need - held : 0;
  }
  return tokens;
}

/// A sequence starts if its tokens fit and those that run have some pages left to grow into:
/// otherwise it would soon be preempted. The only one always fits.
bool rank_core::has_room(const sequence& s, std::uint64_t promised) const {
  if (running_.size() >= options_.running_max)
    return false;
  if (running_.empty())
    return true;
  const std::uint64_t growth = (running_.size() + 7) / 8 * kv_->page_tokens();
  return round_up(s.known() + 1ULL, kv_->page_tokens()) + growth + promised <= kv_->tokens_free();
}

bool rank_core::has_work() const {
  if (std::any_of(running_.begin(), running_.end(),
                  [this](sequence_key key) { return !is_paused(*sequences_.at(key)); }))
    return true;
  return !waiting_.empty() && has_room(*sequences_.at(waiting_.front()), promised());
}

/// In order of age: nobody overtakes a large request, so it cannot starve.
void rank_core::admit_waiting(instant now) {
  if (waiting_.empty())
    return;
  std::uint64_t claimed = promised();
  while (!waiting_.empty()) {
    sequence& s = *sequences_.at(waiting_.front());
    if (!has_room(s, claimed))
      return;
    open_kv(s);
    waiting_.pop_front();
    s.state = phase::running;
    s.last_step = step_;
    running_.insert(std::upper_bound(running_.begin(), running_.end(), s.key), s.key);
    DI_CHECK(s.computed < s.known());
    const std::uint64_t need = round_up(s.known() + 1ULL, kv_->page_tokens());
    claimed += need - std::min(need, kv_->tokens_held(s.key));
    if (!s.started) {
      s.started = true;
      s.first_row = now;
    }
  }
}

/// All choices and lives of a request stand behind the same bounded hit: the first one's.
void rank_core::open_kv(sequence& s) {
  proto::request_spec& spec = s.owner->spec;
  s.computed = kv_->open(s.key, {&spec, s.tokens, s.prompt, s.owner->attempt, s.choice});
  const kv_prefix begins = kv_->prefix(s.key);
  if (spec.prefix == proto::prefix_mode::bounded && !spec.prefix_recorded) {
    spec.prefix_tokens = begins.bounded;
    spec.prefix_recorded = true;
  }
  if (!s.owner->cached)
    s.owner->cached = std::min(begins.hit, s.prompt);
  prefix_.hits += begins.hit > 0;
  prefix_.tokens += begins.hit;
  prefix_.exact_tokens += begins.bounded == 0 ? begins.hit : 0;
  prefix_.rows += begins.hit > 0 ? s.computed : 0;
}

/// Whether a choice waits for the first one to compute the prompt that they share.
bool rank_core::is_parked(const sequence& s) const {
  if (s.leader == 0 || s.computed + s.in_step > 0)
    return false;
  const auto at = sequences_.find(s.leader);
  if (at == sequences_.end() || at->second->state != phase::running)
    return false;
  return at->second->computed < s.prompt;
}

/// The prompt of `leader` is computed: those that waited for it go on from its copy. The last row
/// is run again, as each choice draws from it.
void rank_core::unpark(sequence& leader) {
  for (const sequence_key key : leader.owner->open) {
    sequence& s = *sequences_.at(key);
    if (s.leader != leader.key || s.state != phase::running || s.computed + s.in_step > 0)
      continue;
    if (kv_->fork(leader.key, key, s.prompt - 1)) {
      s.computed = s.prompt - 1;
      ++prefix_.forks;
    }
    s.leader = 0; // else it computes the prompt itself
  }
}

void rank_core::plan(instant now) {
  keep();
  admit_waiting(now);
  items_.clear();
  planned_rows_ = draft_rows_ = 0;
  plan_ready_ = true;
  const bool prompts = std::any_of(running_.begin(), running_.end(), [this](sequence_key key) {
    const sequence& s = *sequences_.at(key);
    return s.remaining() > 1 && !is_parked(s);
  });
  const std::uint32_t kept =
      prompts ? std::min(options_.prefill_rows_min, options_.step_rows - 1) : 0;
  plan_decode_rows(options_.step_rows - kept);
  plan_prefill_rows();
}

/// One row each; if not all fit, those go first that have waited longest. A sequence whose token is
/// still being drawn gets its row too, unless that token is certain to be the last.
void rank_core::plan_decode_rows(std::uint32_t cap) {
  ready_.clear();
  for (const sequence_key key : running_) {
    const sequence& s = *sequences_.at(key);
    const bool decodes =
        s.draws ? s.drawn_output() + 1 < s.owner->spec.sampling.max_tokens : s.remaining() == 1;
    if (decodes && !is_paused(s) && !is_parked(s))
      ready_.push_back(&s);
  }
  if (ready_.size() > cap) {
    const auto waits_longer = [](const sequence* a, const sequence* b) {
      return std::pair{a->last_step, a->key} < std::pair{b->last_step, b->key};
    };
    std::nth_element(ready_.begin(), ready_.begin() + cap, ready_.end(), waits_longer);
    ready_.resize(cap);
  }
  for (const sequence* s : ready_)
    items_.push_back({s->key, s->generation, 1, 0, false});
  planned_rows_ += static_cast<std::uint32_t>(ready_.size());
  // Rows for drafts, as far as they leave prompts theirs; how many are verified shows at launch.
  std::uint32_t guesses = 0;
  for (const sequence* s : ready_)
    if (s->speculation.mode == speculation_mode::fixed)
      guesses += std::min(s->speculation.drafts, options_.draft_block);
    else if (s->speculation.mode == speculation_mode::varlen && tuning_.planner.drafting())
      guesses += options_.draft_block;
  draft_rows_ = std::min(guesses, cap - std::min(cap, planned_rows_));
}

/// The oldest prompts first, as many rows as the step's rows and time allow (chunk_planner).
void rank_core::plan_prefill_rows() {
  step_shape shape;
  for (const item& i : items_) // drafts are rows like others
    shape.add(1.0 + draft_rows_ / static_cast<double>(items_.size()),
              sequences_.at(i.key)->computed);
  ready_.clear();
  needs_.clear();
  for (const sequence_key key : running_) {
    const sequence& s = *sequences_.at(key);
    if (s.draws || s.remaining() <= 1 || is_paused(s) || is_parked(s))
      continue;
    const std::uint32_t from = s.computed + s.in_step;
    std::uint32_t end = kv_->chunk_end(key, from);
    if (s.leads && from < s.prompt)
      end = std::min(end, s.prompt); // there others go on from its copy
    ready_.push_back(&s);
    needs_.push_back({s.remaining(), from, end > from ? end - from : 0});
  }
  chunk_rules rules;
  rules.step_ms = options_.step_ms;
  rules.room = options_.step_rows - std::min(options_.step_rows, draft_rows_ + planned_rows_);
  rules.chunk_max = options_.prefill_rows_max;
  rules.chunk_min = std::min(rules.chunk_min, options_.prefill_rows_min);
  planned_rows_ += plan_chunks(needs_, shape, tuning_.cost, rules, chunks_);
  for (std::size_t i = 0; i < ready_.size(); ++i)
    if (chunks_[i] > 0)
      items_.push_back({ready_[i]->key, ready_[i]->generation, chunks_[i], 0, true});
}

} // namespace di::engine
