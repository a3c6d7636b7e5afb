// SPDX-License-Identifier: Apache-2.0
// RANK's requests: assignment, withdrawal, commits and their acknowledgement.
#include "engine/core/rank_core.hpp"

#include "engine/core/rank_sequence.hpp"

#include <algorithm>

namespace di::engine {

rank_core::rank_core(rank_options options, sampler_factory samplers)
    : options_{std::move(options)}, samplers_{std::move(samplers)} {
  DI_CHECK(options_.step_rows > 1); // one row for those that decode, one for a prompt
  DI_CHECK(options_.page_tokens > 0);
}

rank_core::~rank_core() = default;

void rank_core::install_view(epoch view, outbox& out) {
  view_ = std::max(view_, view);
  reported_.report = 0; // a scheduler that is new to the view has no report yet
  report(out);
}

result<void> rank_core::admissible(const proto::assign_request& m) const {
  const proto::request_spec& spec = m.spec;
  const auto id = spec.request.v;
  if (m.life != incarnation{} && m.life != options_.life)
    return fail(ec::stale_incarnation,
                "request {} is for incarnation {:x} of rank {}, this is {:x}", id, m.life.v,
                options_.rank.v, options_.life.v);
  if (m.view < view_)
    return fail(ec::stale_epoch, "request {} comes from view {}, rank {} is in view {}", id,
                m.view.v, options_.rank.v, view_.v);
  if (draining_)
    return fail(ec::unavailable, "rank {} is draining", options_.rank.v);
  if (spec.prompt.empty())
    return fail(ec::bad_argument, "request {} has an empty prompt", id);
  if (spec.sampling.n == 0 || spec.sampling.max_tokens == 0)
    return fail(ec::bad_argument, "request {}: n={}, max_tokens={}, both must be at least 1", id,
                spec.sampling.n, spec.sampling.max_tokens);
  const std::uint64_t length = spec.prompt.size() + std::uint64_t{spec.sampling.max_tokens};
  if (length > options_.context_tokens)
    return fail(ec::context_exceeded,
                "request {}: {} prompt tokens and max_tokens={} exceed the context of {} tokens",
                id, spec.prompt.size(), spec.sampling.max_tokens, options_.context_tokens);
  if (round_up(length, options_.page_tokens) > options_.kv_tokens)
    return fail(ec::kv_exhausted, "request {} needs KV for {} tokens, rank {} has room for {}", id,
                length, options_.rank.v, options_.kv_tokens);
  if (waiting_.size() + spec.sampling.n > options_.waiting_max)
    return fail(ec::unavailable, "rank {} has {} sequences waiting, at most {} may",
                options_.rank.v, waiting_.size(), options_.waiting_max);
  for (std::size_t i = 0; i < spec.prompt.size(); ++i)
    if (spec.prompt[i] < 0 || static_cast<std::uint32_t>(spec.prompt[i]) >= options_.vocab)
      return fail(ec::bad_argument, "request {}: prompt token {} is {}, the vocabulary has {}", id,
                  i, spec.prompt[i], options_.vocab);
  return {};
}

result<void> rank_core::on(const proto::assign_request& m, instant now, outbox& out) {
  const request_id id = m.spec.request;
  if (const auto at = requests_.find(id); at != requests_.end()) {
    if (at->second->attempt >= m.attempt) { // sent again, or overtaken by a newer attempt
      out.send(options_.scheduler,
               proto::request_taken{id, at->second->attempt, options_.rank, options_.life});
      return {};
    }
    drop_attempt(id, now, out);
  }
  if (const auto at = settled_.find(id); at != settled_.end() && at->second >= m.attempt) {
    out.send(options_.scheduler,
             proto::request_settled{id, m.attempt, options_.rank, options_.life});
    return {};
  }
  result<void> taken = admissible(m);
  if (taken)
    taken = take(m, now, out);
  if (!taken) {
    out.count("di_rank_requests_refused_total");
    out.send(options_.scheduler,
             proto::assignment_refused{id, m.attempt, options_.rank, options_.life,
                                       taken.error().code, taken.error().what});
    return {};
  }
  out.count("di_rank_requests_total");
  report(out);
  return {};
}

result<void> rank_core::take(const proto::assign_request& m, instant now, outbox& out) {
  auto r = std::make_unique<request>();
  r->spec = m.spec;
  r->attempt = m.attempt;
  std::vector<std::unique_ptr<sequence>> made;
  for (std::uint32_t choice = 0; choice < m.spec.sampling.n; ++choice) {
    auto s = std::make_unique<sequence>();
    s->owner = r.get();
    s->choice = choice;
    s->prompt = static_cast<std::uint32_t>(m.spec.prompt.size());
    s->tokens = m.spec.prompt;
    s->assigned = now;
    const auto progress =
        std::find_if(m.progress.begin(), m.progress.end(),
                     [choice](const proto::choice_progress& p) { return p.choice == choice; });
    if (progress != m.progress.end() && progress->finished)
      continue;
    DI_TRY(s->sampler, samplers_(r->spec, choice));
    if (progress != m.progress.end())
      for (const token_id token : progress->tokens) {
        s->tokens.push_back(token);
        s->finish = s->sampler->accept(token);
      }
    if (s->finish.reason == proto::finish_reason::none && s->output() == m.spec.sampling.max_tokens)
      s->finish.reason = proto::finish_reason::length;
    s->acknowledged = s->sent = s->output();
    if (s->output() > m.spec.sampling.max_tokens)
      return fail(ec::bad_argument, "request {} resumes with {} tokens, max_tokens={}",
                  m.spec.request.v, s->output(), m.spec.sampling.max_tokens);
    made.push_back(std::move(s));
  }
  out.send(options_.scheduler,
           proto::request_taken{m.spec.request, m.attempt, options_.rank, options_.life});
  request& kept = *requests_.emplace(m.spec.request, std::move(r)).first->second;
  for (auto& s : made) {
    s->key = next_key_++;
    kept.open.push_back(s->key);
    sequence& placed = *sequences_.emplace(s->key, std::move(s)).first->second;
    if (placed.finish.reason != proto::finish_reason::none) {
      // The dead attempt had drawn the last token but could not say so.
      end(placed, placed.finish, now);
      commit(placed, placed.sent, now, out);
    } else {
      waiting_.push_back(placed.key);
    }
  }
  if (kept.open.empty())
    settle(kept, out);
  return {};
}

result<void> rank_core::on(const proto::withdraw_request& m, instant now, outbox& out) {
  const auto at = requests_.find(m.request);
  if (at == requests_.end() || at->second->attempt > m.attempt) {
    out.send(options_.scheduler,
             proto::request_settled{m.request, m.attempt, options_.rank, options_.life});
    return {};
  }
  drop_attempt(m.request, now, out);
  report(out);
  return {};
}

result<void> rank_core::on(const proto::drain_rank&, instant, outbox& out) {
  draining_ = true;
  report(out);
  return {};
}

result<void> rank_core::on(const proto::commit_refused& m, instant now, outbox& out) {
  const auto at = requests_.find(m.request);
  if (at == requests_.end() || at->second->attempt != m.attempt)
    return {};
  out.count("di_rank_attempts_refused_total");
  drop_attempt(m.request, now, out);
  report(out);
  return {};
}

result<void> rank_core::on(const proto::commit_accepted& m, instant, outbox& out) {
  sequence* s = find(m.request, m.choice, m.attempt);
  if (!s)
    return {};
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

rank_core::sequence* rank_core::find(request_id id, std::uint32_t choice, std::uint32_t attempt) {
  const auto at = requests_.find(id);
  if (at == requests_.end() || at->second->attempt != attempt)
    return nullptr;
  for (const sequence_key key : at->second->open)
    if (sequence& s = *sequences_.at(key); s.choice == choice)
      return &s;
  return nullptr;
}

/// Ends a sequence: it keeps only what is not acknowledged, its KV is free unless a step is out.
void rank_core::end(sequence& s, proto::choice_end how, instant now) {
  DI_CHECK(s.state != phase::ended);
  if (s.state == phase::running) {
    std::erase(running_, s.key);
    kv_used_ -= kv_need(s);
    if (std::find(in_step_.begin(), in_step_.end(), s.key) == in_step_.end())
      dropped_.push_back(s.key);
  } else {
    std::erase(waiting_, s.key);
  }
  s.state = phase::ended;
  s.finish = std::move(how);
  if (s.finish.reason != proto::finish_reason::stop && s.finish.kept_tokens == 0)
    s.finish.kept_tokens = s.output();
  s.last_token = s.output() > 0 ? s.last_token : now;
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
  s.sent = s.output();
  s.last_sent = now;
  out.send(options_.journal, std::move(m));
  arm_resend(out);
}

void rank_core::drop_attempt(request_id id, instant now, outbox& out) {
  const auto at = requests_.find(id);
  const std::vector<sequence_key> open = at->second->open;
  for (const sequence_key key : open) {
    sequence& s = *sequences_.at(key);
    if (s.state != phase::ended)
      end(s, {proto::finish_reason::cancelled, -1, 0, ec::cancelled, "withdrawn"}, now);
    remove(key, out);
  }
}

/// Forgets an ended sequence; the last one of its request settles it.
void rank_core::remove(sequence_key key, outbox& out) {
  const auto at = sequences_.find(key);
  request& r = *at->second->owner;
  DI_CHECK(at->second->state == phase::ended);
  std::erase(r.open, key);
  sequences_.erase(at);
  if (r.open.empty())
    settle(r, out);
}

void rank_core::settle(const request& r, outbox& out) {
  const request_id id = r.spec.request;
  out.send(options_.scheduler, proto::request_settled{id, r.attempt, options_.rank, options_.life});
  if (settled_.insert_or_assign(id, r.attempt).second)
    settled_order_.push_back(id);
  if (settled_order_.size() > options_.settled_kept) {
    settled_.erase(settled_order_.front());
    settled_order_.pop_front();
  }
  requests_.erase(id);
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
      if (now - s.last_sent >= options_.resend_after) {
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

void rank_core::report(outbox& out) {
  proto::rank_load load;
  load.rank = options_.rank;
  load.life = options_.life;
  load.running = running();
  load.waiting = waiting();
  for (const auto& [key, s] : sequences_)
    if (s->state != phase::ended && s->remaining() > 1)
      load.rows_pending += s->remaining();
  load.kv_tokens_total = options_.kv_tokens;
  load.kv_tokens_free = options_.kv_tokens - kv_used_;
  load.draining = draining_;
  const bool same = load.running == reported_.running && load.waiting == reported_.waiting
                    && load.rows_pending == reported_.rows_pending
                    && load.kv_tokens_free == reported_.kv_tokens_free
                    && load.draining == reported_.draining;
  if (same && reported_.report != 0)
    return;
  load.report = ++report_;
  reported_ = load;
  out.send(options_.scheduler, load);
}

std::uint32_t rank_core::unacknowledged() const {
  std::uint32_t n = 0;
  for (const auto& [key, s] : sequences_)
    n += s->output() - s->acknowledged;
  return n;
}

void rank_core::check() const {
  std::uint64_t used = 0;
  std::size_t open = 0;
  for (const auto& [id, r] : requests_) {
    DI_CHECK(!r->open.empty());
    open += r->open.size();
  }
  DI_CHECK_EQ(open, sequences_.size());
  std::size_t ended = 0;
  for (const auto& [key, s] : sequences_) {
    DI_CHECK(s->acknowledged <= s->sent);
    DI_CHECK(s->sent <= s->output());
    DI_CHECK(s->computed <= s->tokens.size());
    DI_CHECK(s->output() <= s->owner->spec.sampling.max_tokens);
    DI_CHECK(s->output() - s->acknowledged <= options_.unacknowledged_max + 1);
    DI_CHECK(s->logprobs.empty() || s->logprobs.size() == s->output() - s->acknowledged);
    ended += s->state == phase::ended;
    if (s->state == phase::running)
      used += kv_need(*s);
  }
  DI_CHECK_EQ(used, kv_used_);
  DI_CHECK(kv_used_ <= options_.kv_tokens);
  DI_CHECK(running_.size() <= options_.running_max);
  DI_CHECK_EQ(running_.size() + waiting_.size() + ended, sequences_.size());
}

} // namespace di::engine
