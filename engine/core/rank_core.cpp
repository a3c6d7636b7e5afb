// SPDX-License-Identifier: Apache-2.0
// RANK's requests: assignment, withdrawal, end, invariants.
#include "engine/core/rank_core.hpp"

#include "engine/core/rank_sequence.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/proto/kv_agent.hpp"

#include <algorithm>

namespace di::engine {

rank_core::rank_core(rank_options options, sampler_factory samplers, kv_ledger* kv)
    : options_{std::move(options)},
      samplers_{std::move(samplers)},
      kv_{kv},
      tuning_{options_.step_rows, options_.draft_block} {
  DI_CHECK(options_.step_rows > 1); // one row for those that decode, one for a prompt
  DI_CHECK(options_.page_tokens > 0);
  DI_CHECK(options_.steps_in_flight == 1 || options_.steps_in_flight == 2);
  if (!kv_) {
    own_kv_ = std::make_unique<counted_ledger>(options_.kv_tokens, options_.page_tokens);
    kv_ = own_kv_.get();
  }
}

rank_core::~rank_core() = default;

void rank_core::install_view(epoch view, outbox& out) {
  if (view > view_)
    draining_ = false; // KEEPER says it again, unless it was itself started anew and has forgotten
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
  if (m.view < view_ && !planted("no_epoch_check")) {
    reached("rank.refuses_older_view");
    return fail(ec::stale_epoch, "request {} comes from view {}, rank {} is in view {}", id,
                m.view.v, options_.rank.v, view_.v);
  }
  if (draining_)
    return fail(ec::unavailable, "rank {} is draining", options_.rank.v);
  if (spec.drafts != 0)
    if (const auto choice = speculation_from_code(spec.drafts); !choice.ok())
      return fail(choice.error().code, "request {}: {}", id, choice.error().what);
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
  if (round_up(length, kv_->page_tokens()) > kv_->tokens_total())
    return fail(ec::kv_exhausted, "request {} needs KV for {} tokens, rank {} has room for {}", id,
                length, options_.rank.v, kv_->tokens_total());
  if (spec.sampling.n > options_.waiting_max)
    return fail(ec::limit_exceeded, "request {}: n={}, at most {} sequences may wait in a rank", id,
                spec.sampling.n, options_.waiting_max);
  if (waiting_.size() + spec.sampling.n > options_.waiting_max)
    return fail(ec::unavailable, "rank {} has {} sequences waiting, at most {} may",
                options_.rank.v, waiting_.size(), options_.waiting_max);
  for (std::size_t i = 0; i < spec.prompt.size(); ++i)
    if (spec.prompt[i] < 0 || static_cast<std::uint32_t>(spec.prompt[i]) >= options_.vocab)
      return fail(ec::bad_argument, "request {}: prompt token {} is {}, the vocabulary has {}", id,
                  i, spec.prompt[i], options_.vocab);
  return kv_->admits(spec);
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

result<std::unique_ptr<rank_core::sequence>>
rank_core::make_sequence(const proto::assign_request& m, request& owner, std::uint32_t choice,
                         instant now) const {
  auto s = std::make_unique<sequence>();
  s->owner = &owner;
  s->choice = choice;
  s->prompt = static_cast<std::uint32_t>(m.spec.prompt.size());
  s->tokens = m.spec.prompt;
  s->assigned = now;
  s->speculation = speculation_of(owner.spec);
  DI_TRY(s->sampler, samplers_(owner.spec, choice));
  const auto progress =
      std::find_if(m.progress.begin(), m.progress.end(),
                   [choice](const proto::choice_progress& p) { return p.choice == choice; });
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
  return s;
}

result<void> rank_core::take(const proto::assign_request& m, instant now, outbox& out) {
  auto r = std::make_unique<request>();
  r->spec = m.spec;
  r->attempt = m.attempt;
  std::vector<std::unique_ptr<sequence>> made;
  for (std::uint32_t choice = 0; choice < m.spec.sampling.n; ++choice) {
    if (std::any_of(m.progress.begin(), m.progress.end(),
                    [choice](const auto& p) { return p.choice == choice && p.finished; }))
      continue;
    DI_TRY(auto s, make_sequence(m, *r, choice, now));
    made.push_back(std::move(s));
  }
  out.send(options_.scheduler,
           proto::request_taken{m.spec.request, m.attempt, options_.rank, options_.life});
  request& kept = *requests_.emplace(m.spec.request, std::move(r)).first->second;
  sequence_key leader = 0; // the first choice: the others may copy its prompt
  for (auto& s : made) {
    s->key = m.attempt > 1 ? next_resumed_key_++ : next_key_++;
    s->leader = leader;
    s->leads = leader == 0 && made.size() > 1;
    leader = leader == 0 ? s->key : leader;
    kept.open.push_back(s->key);
    sequence& placed = *sequences_.emplace(s->key, std::move(s)).first->second;
    enqueue(placed);
    if (placed.finish.reason != proto::finish_reason::none) {
      // The dead attempt had drawn the last token but could not say so.
      end(placed, placed.finish, now);
      commit(placed, placed.sent, now, out);
    }
  }
  plan_ready_ = false; // the next step may have room for it
  if (kept.open.empty())
    settle(kept, out);
  return {};
}

result<void> rank_core::on(const proto::withdraw_request& m, instant now, outbox& out) {
  const auto at = requests_.find(m.request);
  if (at == requests_.end() || at->second->attempt > m.attempt) {
    out.send(options_.scheduler,
             proto::request_settled{m.request, m.attempt, options_.rank, options_.life});
    release_copies(m.request, m.attempt, out); // KV_AGENT may be bringing them
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
  if (at == requests_.end() || at->second->attempt != m.attempt || planted("refusal_ignored"))
    return {};
  out.count("di_rank_attempts_refused_total");
  reached("rank.drops_refused_attempt");
  drop_attempt(m.request, now, out);
  report(out);
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
    const bool computing = s.in_step > 0 || s.drafting;
    if (s.fresh.empty() && how.reason != proto::finish_reason::error)
      kv_->ending(s.key, std::min(s.computed, s.known()), computing);
    if (computing)
      closing_.push_back(s.key);
    else
      kv_->close(s.key);
  } else {
    std::erase(waiting_, s.key);
  }
  s.state = phase::ended;
  s.in_step = 0;
  s.fresh.clear();
  s.fresh_logprobs.clear();
  s.finish = std::move(how);
  if (s.finish.reason != proto::finish_reason::stop && s.finish.kept_tokens == 0)
    s.finish.kept_tokens = s.output();
  s.last_token = s.output() > 0 ? s.last_token : now;
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

void rank_core::release_copies(request_id id, std::uint32_t attempt, outbox& out) {
  if (!options_.kv_agent.empty())
    out.send(options_.kv_agent, proto::release_pages{{id, attempt, options_.rank, options_.life}});
}

void rank_core::settle(const request& r, outbox& out) {
  const request_id id = r.spec.request;
  kv_->over(id, r.attempt);
  out.send(options_.scheduler, proto::request_settled{id, r.attempt, options_.rank, options_.life});
  release_copies(id, r.attempt, out);
  if (settled_.insert_or_assign(id, r.attempt).second)
    settled_order_.push_back(id);
  if (settled_order_.size() > options_.settled_kept) {
    settled_.erase(settled_order_.front());
    settled_order_.pop_front();
  }
  requests_.erase(id);
}

bool rank_core::knows(request_id id, std::uint32_t attempt) const {
  const auto open = requests_.find(id);
  const auto settled = settled_.find(id);
  return (open != requests_.end() && open->second->attempt >= attempt)
         || (settled != settled_.end() && settled->second >= attempt);
}

request_id rank_core::request_of(sequence_key key) const {
  const auto at = sequences_.find(key);
  return at == sequences_.end() ? request_id{} : at->second->owner->spec.request;
}

std::uint32_t rank_core::unacknowledged() const {
  std::uint32_t n = 0;
  for (const auto& [key, s] : sequences_)
    n += s->output() - s->acknowledged;
  return n;
}

void rank_core::check() const {
  std::size_t open = 0;
  for (const auto& [id, r] : requests_) {
    DI_CHECK(!r->open.empty());
    open += r->open.size();
  }
  DI_CHECK_EQ(open, sequences_.size());
  std::size_t ended = 0;
  std::uint32_t in_step = 0;
  for (const auto& [key, s] : sequences_) {
    DI_CHECK(s->acknowledged <= s->sent);
    DI_CHECK(s->sent <= s->output());
    DI_CHECK(s->drawn_output() <= s->owner->spec.sampling.max_tokens);
    DI_CHECK(s->drawn_output() - s->acknowledged <= options_.unacknowledged_max);
    DI_CHECK(s->logprobs.empty() || s->logprobs.size() == s->output() - s->acknowledged);
    DI_CHECK(s->in_step == 0 || (out_ && s->state == phase::running));
    DI_CHECK(!s->queued() || s->computed == 0);
    if (s->state == phase::ended)
      ++ended;
    else
      DI_CHECK(s->computed + s->in_step <= s->known() + options_.draft_block);
    if (s->state == phase::running)
      DI_CHECK(s->computed + s->in_step <= kv_->tokens_held(key) || s->computed == 0);
    in_step += s->in_step;
  }
  DI_CHECK(in_step <= (out_ ? launched_.rows : 0));
  DI_CHECK(closing_.empty() || out_ || !wishes_.empty());
  DI_CHECK(running_.size() <= options_.running_max);
  DI_CHECK(std::is_sorted(running_.begin(), running_.end()));
  DI_CHECK(std::is_sorted(waiting_.begin(), waiting_.end()));
  DI_CHECK_EQ(running_.size() + waiting_.size() + ended, sequences_.size());
  DI_CHECK_EQ(kv_->sequences(), running_.size() + closing_.size());
  kv_->check();
}

} // namespace di::engine
