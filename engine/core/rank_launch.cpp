// SPDX-License-Identifier: Apache-2.0
// RANK's launches: a plan becomes a step, with pages for its rows; who loses its pages if there are
// not enough.
#include "engine/core/rank_sequence.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"

#include <algorithm>

namespace di::engine {

const step_plan& rank_core::launch(instant now, outbox& out) {
  DI_CHECK(!out_);
  keep();
  end_drafts();
  if (!plan_ready_)
    plan(now);
  plan_ready_ = false;
  launched_.segments.clear();
  launched_.rows = launched_.prefill_rows = launched_.draft_rows = 0;
  choose_drafts();
  for (item& i : items_)
    take_pages(i, now, out);
  for (const item& i : items_)
    if (sequence* s = live(i))
      add_segment(i, *s, now);
  if (launched_.segments.empty())
    return launched_;
  out_ = true;
  launched_.step = epoch{++step_};
  rows_ += launched_.rows;
  return launched_;
}

/// The sequence that an item was planned for, if it still is what it was then and may go on.
rank_core::sequence* rank_core::live(const item& i) {
  const auto at = sequences_.find(i.key);
  if (at == sequences_.end())
    return nullptr;
  sequence& s = *at->second;
  const bool same = s.state == phase::running && s.generation == i.generation && !s.broken;
  const bool more = s.drawn_output() < s.owner->spec.sampling.max_tokens;
  return same && more && !is_paused(s) ? &s : nullptr;
}

/// Takes room for an item's rows. If there is none, the newest sequences lose theirs, down to the
/// item's own: an older one never waits for a newer.
void rank_core::take_pages(item& i, instant now, outbox& out) {
  sequence* s = live(i);
  if (!s)
    return;
  i.rows = std::min(i.rows, s->remaining());
  while (!kv_->reserve(s->key, s->computed + i.rows + i.drafts)) {
    if (i.drafts > 0) {
      i.drafts = 0;
      continue;
    }
    const auto holds = [&](sequence_key key) { return key == s->key || kv_->tokens_held(key) > 0; };
    sequence& victim = *sequences_.at(*std::find_if(running_.rbegin(), running_.rend(), holds));
    if (&victim != s) {
      preempt(victim, out);
      continue;
    }
    const bool alone = std::none_of(running_.begin(), running_.end(), [&](sequence_key key) {
      return key != s->key && kv_->tokens_held(key) > 0;
    });
    if (alone) { // would come back to the same place for ever
      s->broken = error{ec::kv_exhausted,
                        fmt::format("rank {} has no KV for {} tokens of request {}: {} of {} free",
                                    options_.rank.v, s->computed + i.rows, s->owner->spec.request.v,
                                    kv_->tokens_free(), kv_->tokens_total())};
      end(*s, {proto::finish_reason::error, -1, 0, s->broken->code, s->broken->what}, now);
      commit(*s, s->sent, now, out);
    } else {
      preempt(*s, out);
    }
    return;
  }
}

/// Takes the KV of a sequence; it will compute all its tokens again. @pre no step is out
void rank_core::preempt(sequence& s, outbox& out) {
  DI_CHECK(!out_);
  reached("rank.preempts");
  kv_->close(s.key);
  std::erase(running_, s.key);
  if (!planted("forgotten_rollback"))
    s.computed = 0;
  ++s.generation;
  ++preemptions_;
  s.state = phase::preempted;
  enqueue(s);
  out.count("di_rank_preemptions_total");
}

void rank_core::enqueue(sequence& s) {
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), s.key), s.key);
}

void rank_core::add_segment(const item& i, sequence& s, instant now) {
  if (!s.started) {
    s.started = true;
    s.first_row = now;
  }
  planned_segment segment;
  segment.sequence = s.key;
  segment.first_position = s.computed;
  segment.tokens.reserve(i.rows + i.drafts);
  for (std::uint32_t r = 0; r < i.rows; ++r)
    segment.tokens.push_back(s.token(s.computed + r));
  segment.draws = i.rows == s.remaining();
  if (segment.draws && i.drafts > 0) {
    segment.drafts = i.drafts;
    segment.tokens.insert(segment.tokens.end(), s.drafts.begin(), s.drafts.begin() + i.drafts);
  }
  s.drafted_at = 0; // used up
  s.in_step = i.rows + segment.drafts;
  s.draws = segment.draws;
  s.last_step = step_ + 1;
  launched_.rows += s.in_step;
  launched_.draft_rows += segment.drafts;
  launched_.prefill_rows += i.prefill ? i.rows : 0;
  launched_.segments.push_back(std::move(segment));
}

} // namespace di::engine
