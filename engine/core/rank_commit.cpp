// SPDX-License-Identifier: Apache-2.0
// What RANK tells: settled tokens, their repetition until JOURNAL has them, its load.
#include "engine/core/rank_sequence.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/base/trace.hpp"

#include <algorithm>
#include <utility>

namespace di::engine {

std::vector<token_id> rank_core::finish(instant now, outbox& out) {
  std::vector<token_id> drawn;
  keep();
  if (unfinished_.empty()) {
    if (std::exchange(freed_, false))
      report(out); // what ended during the step has given its room back
    return drawn;
  }
  freed_ = false;
  const std::vector<sequence_key> keys = std::exchange(unfinished_, {});
  for (const sequence_key key : keys) {
    const auto at = sequences_.find(key);
    if (at == sequences_.end() || at->second->state == phase::ended)
      continue; // withdrawn meanwhile
    settle_drawn(*at->second, now, drawn);
    commit(*at->second, at->second->sent, now, out);
  }
  out.count("di_rank_steps_total");
  out.count("di_rank_tokens_total", static_cast<double>(drawn.size()));
  count_told(out);
  report(out);
  return drawn;
}

namespace {

struct position_metrics {
  std::string_view verified, accepted;
};

/// Positions that have counters of their own; get_rank shows all.
constexpr position_metrics drafts_at[] = {
    {"di_rank_drafts_1_verified_total", "di_rank_drafts_1_accepted_total"},
    {"di_rank_drafts_2_verified_total", "di_rank_drafts_2_accepted_total"},
    {"di_rank_drafts_3_verified_total", "di_rank_drafts_3_accepted_total"},
    {"di_rank_drafts_4_verified_total", "di_rank_drafts_4_accepted_total"},
    {"di_rank_drafts_5_verified_total", "di_rank_drafts_5_accepted_total"},
};

} // namespace

/// Drafts and prefixes since the last time.
void rank_core::count_told(outbox& out) {
  const auto tell = [&out](std::string_view metric, std::uint64_t now, std::uint64_t& told) {
    if (now != told)
      out.count(metric, static_cast<double>(now - std::exchange(told, now)));
  };
  for (std::size_t k = 0; k < drafts_max; ++k) {
    std::uint64_t verified = verified_told_[k], accepted = accepted_told_[k]; // for the sums
    tell("di_rank_drafts_verified_total", tuning_.verified[k], verified);
    tell("di_rank_drafts_accepted_total", tuning_.accepted[k], accepted);
    if (k < std::size(drafts_at)) {
      tell(drafts_at[k].verified, tuning_.verified[k], verified_told_[k]);
      tell(drafts_at[k].accepted, tuning_.accepted[k], accepted_told_[k]);
    }
    verified_told_[k] = verified;
    accepted_told_[k] = accepted;
  }
  tell("di_rank_prefix_hits_total", prefix_.hits, prefix_told_.hits);
  tell("di_rank_prefix_tokens_total", prefix_.tokens, prefix_told_.tokens);
  tell("di_rank_prefix_exact_tokens_total", prefix_.exact_tokens, prefix_told_.exact_tokens);
  tell("di_rank_prefix_rows_total", prefix_.rows, prefix_told_.rows);
  tell("di_rank_forks_total", prefix_.forks, prefix_told_.forks);
}

/// Tokens count until the first that ends the choice; what was drawn behind it never was.
void rank_core::settle_drawn(sequence& s, instant now, std::vector<token_id>& drawn) {
  const std::uint32_t limit = s.owner->spec.sampling.max_tokens;
  const std::vector<token_id> fresh = std::exchange(s.fresh, {});
  const std::vector<proto::position_logprobs> logprobs = std::exchange(s.fresh_logprobs, {});
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    s.tokens.push_back(fresh[i]);
    drawn.push_back(fresh[i]);
    if (!logprobs.empty())
      s.logprobs.push_back(logprobs[i]);
    if (s.output() == 1)
      s.first_token = s.drawn;
    s.last_token = s.drawn;
    proto::choice_end finish = s.sampler->accept(fresh[i]);
    if (finish.reason == proto::finish_reason::none && s.output() >= limit)
      finish.reason = proto::finish_reason::length;
    if (finish.reason != proto::finish_reason::none)
      return end(s, std::move(finish), now);
  }
  if (s.broken)
    end(s, {proto::finish_reason::error, -1, 0, s.broken->code, s.broken->what}, now);
}

result<void> rank_core::on(const proto::commit_accepted& m, instant now, outbox& out) {
  sequence* s = find(m.request, m.choice, m.attempt);
  if (!s)
    return {};
  if (m.ended && s->state != phase::ended) { // GATEWAY found its end: what is drawn behind is void
    reached("rank.drops_ended_choice");
    end(*s, {proto::finish_reason::stop, -1, m.next_index, ec::ok, {}}, now);
    remove(s->key, out);
    report(out);
    return {};
  }
  const std::uint32_t next = std::min(m.next_index, s->output());
  while (s->acknowledged < next) {
    ++s->acknowledged;
    if (!s->logprobs.empty())
      s->logprobs.pop_front();
  }
  s->sent = std::max(s->sent, s->acknowledged);
  if (m.ended && s->state == phase::ended && s->acknowledged == s->output()) {
    remove(s->key, out);
    report(out);
  }
  return {};
}

void rank_core::commit(sequence& s, std::uint32_t from, instant now, outbox& out) {
  const bool ended = s.state == phase::ended;
  if (from == s.output() && !ended)
    return;
  proto::tokens_committed m;
  m.request = s.owner->spec.request;
  m.choice = s.choice;
  m.attempt = s.owner->attempt;
  m.rank = options_.rank;
  m.life = options_.life;
  m.view = view_;
  m.first_index = from;
  m.tokens.assign(s.tokens.begin() + s.prompt + from, s.tokens.end());
  if (!s.logprobs.empty())
    m.logprobs.assign(s.logprobs.begin() + (from - s.acknowledged), s.logprobs.end());
  if (ended) {
    m.end = s.finish;
    m.timings = s.timings();
  }
  m.prefix_tokens = s.owner->spec.prefix_tokens;
  m.cached_tokens = s.owner->cached.value_or(0);
  trace::mark(trace::kind::commit, m.request,
              {.rows = static_cast<std::uint32_t>(m.tokens.size())});
  s.sent = s.output();
  s.last_sent = now;
  out.send(options_.journal, std::move(m));
  arm_resend(out);
}

result<void> rank_core::on_due(timer which, instant now, outbox& out) {
  if (which.kind != resend_due)
    return {};
  resend_armed_ = false;
  for (auto& [id, r] : requests_)
    for (const sequence_key key : r->open) {
      sequence& s = *sequences_.at(key);
      const bool open = s.acknowledged < s.sent || s.state == phase::ended;
      if (!open)
        continue;
      if (now - s.last_sent >= options_.resend_after && !planted("commits_not_resent")) {
        out.count("di_rank_commits_resent_total");
        commit(s, s.acknowledged, now, out);
      }
      arm_resend(out);
    }
  return {};
}

void rank_core::arm_resend(outbox& out) {
  if (!resend_armed_)
    out.arm({resend_due, 0}, options_.resend_after);
  resend_armed_ = true;
}

void rank_core::set_slow(std::span<const slow_holder> slow, outbox& out) {
  slow_.assign(slow.begin(), slow.end());
  report(out);
}

void rank_core::report(outbox& out) {
  proto::rank_load load;
  load.rank = options_.rank;
  load.life = options_.life;
  load.running = running();
  load.waiting = waiting();
  for (const auto& [key, s] : sequences_)
    if (s->state != phase::ended && s->remaining() > 1)
      load.rows_pending += s->remaining();
  load.kv_tokens_total = kv_->tokens_total();
  load.kv_tokens_free = kv_->tokens_free();
  load.draining = draining_;
  load.rows_done = rows_;
  for (const slow_holder& s : slow_) {
    load.slow.push_back(s.who.rank);
    load.slow_percent.push_back(static_cast<std::uint32_t>(100 * std::min(s.factor, 1000.0)));
  }
  const bool same = load.running == reported_.running && load.waiting == reported_.waiting
                    && load.rows_pending == reported_.rows_pending
                    && load.kv_tokens_free == reported_.kv_tokens_free
                    && load.draining == reported_.draining && load.slow == reported_.slow
                    && load.slow_percent == reported_.slow_percent;
  if (same && reported_.report != 0)
    return;
  load.report = ++report_;
  reported_ = load;
  out.send(options_.scheduler, load);
}

} // namespace di::engine
