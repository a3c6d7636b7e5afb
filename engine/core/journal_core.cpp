// SPDX-License-Identifier: Apache-2.0
// Recording, releasing and closing requests.
#include "engine/core/journal_core.hpp"

#include "engine/core/deadline.hpp"
#include "engine/core/expert_shard_core.hpp" // rank_path
#include "engine/core/journal_request.hpp"
#include "engine/core/resend.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/base/result.hpp"
#include "messaging/base/trace.hpp"

#include <algorithm>

namespace di::engine {

namespace {
constexpr std::uint32_t ask_again_ms = 500;
} // namespace

journal_core::journal_core(journal_options options) : options_{std::move(options)} {
}

journal_core::~journal_core() = default;

journal_core::request* journal_core::find(request_id id) {
  const auto at = requests_.find(id);
  return at == requests_.end() ? nullptr : at->second.get();
}

const proto::request_spec* journal_core::recorded(request_id id) const {
  const auto at = requests_.find(id);
  return at == requests_.end() || at->second->closed ? nullptr : &at->second->spec;
}

result<void> journal_core::on(const proto::open_request& m, instant now, outbox& out) {
  const request_id id = m.spec.request;
  const trace::span recording{
      trace::kind::record, {.rows = static_cast<std::uint32_t>(m.spec.prompt.size())}, id};
  if (request* r = find(id)) {
    reopen(*r, m, now, out);
    return {};
  }
  const auto refuse = [&](ec code, std::string what) {
    out.count("di_journal_requests_refused_total");
    out.send(m.spec.gateway, proto::request_closed{
                                 id, {proto::finish_reason::error, -1, 0, code, std::move(what)}});
  };
  if (forgotten_.contains(id.v)) {
    // Late, and nobody waits; or of another life of GATEWAY, which must not wait for ever.
    out.send(m.spec.gateway,
             proto::request_closed{id,
                                   {proto::finish_reason::error, -1, 0, ec::duplicate,
                                    fmt::format("request {} was answered before", id.v)}});
    return {};
  }
  if (answer_known(m, out))
    return {};
  // Closed ones that are kept for a later run are bounded by their bytes alone (cannot_open).
  if (const std::size_t open = m.keep ? counts_.open : requests_.size() - stored_.size();
      open >= options_.open_max) {
    refuse(ec::unavailable, fmt::format("{} requests are open", open));
    return {};
  }
  if (const auto why = cannot_open(); !why.empty()) {
    out.count("di_journal_requests_refused_total");
    out.send(m.spec.gateway,
             proto::request_closed{
                 id, {proto::finish_reason::error, -1, 0, ec::unavailable, why}, ask_again_ms});
    return {};
  }
  if (m.spec.sampling.n == 0 || m.spec.sampling.n > 1024) {
    refuse(ec::bad_argument, fmt::format("request {}: n={}", id.v, m.spec.sampling.n));
    return {};
  }
  if (m.note.size() > proto::open_request::note_bytes_max) {
    refuse(ec::limit_exceeded, fmt::format("request {}: a note of {} bytes", id.v, m.note.size()));
    return {};
  }
  request& r = make_request(m, now);
  out.count("di_journal_requests_total");
  if (m.spec.deadline_ms > 0)
    out.arm({deadline_due, id.v}, deadline_span(m.spec.deadline_ms));
  record_opened(r, now);
  send_when(r.position, id, m.spec.gateway, proto::request_opened{id}, out);
  admit(r, now, out);
  return {};
}

void journal_core::admit(request& r, instant now, outbox& out) {
  r.asked = now;
  record_attempt(r, now);
  proto::admit_request m;
  m.spec = r.spec;
  m.attempt = r.attempt;
  if (r.spec.deadline_ms > 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        r.opened + deadline_span(r.spec.deadline_ms) - now);
    m.deadline_left_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(1, left.count()));
  }
  if (r.placed) { // by an earlier life of control
    m.placed_rank = r.placed->first;
    m.placed_life = r.placed->second;
  }
  const auto known = [](const choice& c) { return c.next() > 0 || c.ended(); };
  if (r.attempt > 1 || std::any_of(r.choices.begin(), r.choices.end(), known))
    for (std::uint32_t i = 0; i < r.choices.size(); ++i)
      m.progress.push_back({i, r.choices[i].tokens, r.choices[i].ended()});
  send_when(r.position, r.spec.request, options_.scheduler, std::move(m), out);
  arm(out);
}

result<void> journal_core::on(const proto::request_admitted& m, instant now, outbox& out) {
  request* r = find(m.request);
  if (!r || r->attempt != m.attempt || r->closed)
    return {};
  r->admitted = true;
  if (m.placed)
    place(*r, {m.rank, m.life}, now, out);
  return {};
}

result<void> journal_core::on(const proto::admission_refused& m, instant now, outbox& out) {
  request* r = find(m.request);
  if (!r || r->attempt != m.attempt || r->closed)
    return {};
  close(*r, {proto::finish_reason::error, -1, 0, m.code, m.what}, false, now, out);
  return {};
}

result<void> journal_core::on(const proto::tokens_committed& m, instant now, outbox& out) {
  const trace::span accepting{
      trace::kind::accept, {.rows = static_cast<std::uint32_t>(m.tokens.size())}, m.request};
  const address rank = rank_path(m.rank);
  request* r = find(m.request);
  const bool current =
      r && (m.attempt == r->attempt || planted("no_attempt_fence")) && m.choice < r->choices.size();
  if (current && r->choices[m.choice].ended()) {
    // All of it is known already; this also answers an end that was sent twice.
    const choice& c = r->choices[m.choice];
    counts_.repeated += m.tokens.size();
    if (!c.cut) {
      if (c.position <= written_) // else the answer to the first one waits still
        send_when(c.position, m.request, rank,
                  proto::commit_accepted{m.request, m.choice, m.attempt, c.next(), true}, out);
      return {};
    }
  }
  const bool alive = !current || r->closed
                     || (place(*r, {m.rank, m.life}, now, out) && !goes_astray(*r, m, now, out));
  if (!current || r->closed || !alive) {
    ++counts_.refused;
    reached("journal.refuses_commit");
    out.count("di_journal_commits_refused_total");
    // A rank that hears it drops the attempt for good: a later life of this must know why. It asks
    // again.
    if (r && r->position > written_)
      return {};
    out.send(rank, proto::commit_refused{m.request, m.attempt, r && !r->closed ? r->attempt : 0});
    return {};
  }
  choice& c = r->choices[m.choice];
  const std::uint64_t before = c.position;
  r->admitted = true;
  if (m.first_index <= c.next()) {
    const std::uint32_t known = std::min<std::uint32_t>(
        c.next() - m.first_index, static_cast<std::uint32_t>(m.tokens.size()));
    const bool same =
        std::equal(m.tokens.begin(), m.tokens.begin() + known, c.tokens.begin() + m.first_index);
    counts_.repeated += known;
    if (!same) {
      close(*r,
            {proto::finish_reason::error, -1, 0, ec::corrupt,
             fmt::format("request {} choice {}: rank {} changed a token below index {}",
                         m.request.v, m.choice, m.rank.v, c.next())},
            true, now, out);
      return {};
    }
    if (!r->spec.prefix_recorded && r->spec.prefix == proto::prefix_mode::bounded) {
      r->spec.prefix_tokens = m.prefix_tokens;
      r->spec.prefix_recorded = true;
      r->prefix_of = {m.rank, m.life};
    }
    if (!std::exchange(r->cached_known, true))
      r->cached_tokens = m.cached_tokens;
    append(*r, m, known, now);
    c.rank = m.rank;
    if (c.sent < c.next() || c.ended())
      release(*r, m.choice, c.sent, now, out);
  }
  if (c.position != before || c.position <= written_)
    send_when(c.position, m.request, rank,
              proto::commit_accepted{m.request, m.choice, m.attempt, c.next(), c.ended()}, out);
  if (std::all_of(r->choices.begin(), r->choices.end(), [](const choice& x) { return x.ended(); }))
    close(*r, {}, false, now, out);
  return {};
}

void journal_core::append(request& r, const proto::tokens_committed& m, std::uint32_t skip,
                          instant now) {
  choice& c = r.choices[m.choice];
  const std::size_t added = m.tokens.size() - skip;
  c.tokens.insert(c.tokens.end(), m.tokens.begin() + skip, m.tokens.end());
  if (m.logprobs.size() == m.tokens.size())
    c.logprobs.insert(c.logprobs.end(), m.logprobs.begin() + skip, m.logprobs.end());
  counts_.tokens += added;
  if (m.end.reason != proto::finish_reason::none && m.first_index + m.tokens.size() == c.next()) {
    c.end = m.end;
    c.timings = m.timings;
  }
  if (added > 0 || c.ended())
    record_tokens(r, m.choice, c.next() - static_cast<std::uint32_t>(added), now);
}

/// Sends GATEWAY the tokens from an index on, and the end if there is one, once all is written.
void journal_core::release(request& r, std::uint32_t which, std::uint32_t from, instant now,
                           outbox& out) {
  release(r, which, from, r.choices[which].next(), now, out);
}

void journal_core::release(request& r, std::uint32_t which, std::uint32_t from, std::uint32_t to,
                           instant now, outbox& out) {
  if (r.detached)
    return;
  choice& c = r.choices[which];
  const bool all = to == c.next();
  proto::tokens_released m;
  m.request = r.spec.request;
  m.choice = which;
  m.first_index = from;
  m.tokens.assign(c.tokens.begin() + from, c.tokens.begin() + to);
  if (c.logprobs.size() == c.tokens.size())
    m.logprobs.assign(c.logprobs.begin() + from, c.logprobs.begin() + to);
  if (all) {
    m.end = c.end;
    m.timings = c.timings;
  }
  m.attempts = r.attempt;
  m.rank = c.rank;
  m.cached_tokens = r.cached_tokens;
  c.released = now;
  c.sent = std::max(c.sent, to);
  send_when(all ? c.position : 0, r.spec.request, r.spec.gateway, std::move(m), out);
  arm(out);
}

result<void> journal_core::on(const proto::release_acknowledged& m, const origin& from, instant now,
                              outbox&) {
  request* r = find(m.request);
  if (!r || m.choice >= r->choices.size() || r->detached)
    return {};
  if (!from.from.empty() && from.from != r->spec.gateway)
    return {}; // another follows it by now
  choice& c = r->choices[m.choice];
  const std::uint32_t shown = std::min(m.next_index, c.settled);
  if (shown > c.shown || (m.ended && c.end_settled))
    c.wait = options_.resend_after;
  c.shown = std::max(c.shown, shown);
  c.sent = std::max(c.sent, c.shown); // an earlier life of this sent it
  c.end_shown = c.end_shown || (m.ended && c.end_settled && !planted("unbounded_retry"));
  forget_if_done(*r, now);
  return {};
}

/// Ends what has not ended with `rest`, and tells GATEWAY and SCHEDULER.
void journal_core::close(request& r, const proto::choice_end& rest, bool withdraw, instant now,
                         outbox& out) {
  r.closed = true;
  if (r.spec.deadline_ms > 0)
    out.disarm({deadline_due, r.spec.request.v});
  if (stalled() && rest.reason != proto::finish_reason::none)
    drop_unwritten(r); // it ends with what could be shown
  for (std::uint32_t i = 0; i < r.choices.size(); ++i)
    if (!r.choices[i].ended()) {
      r.choices[i].end = rest;
      r.choices[i].end.kept_tokens = r.choices[i].next();
      r.choices[i].cut = true;
    }
  record_closed(r, rest, now);
  for (std::uint32_t i = 0; i < r.choices.size(); ++i)
    if (r.choices[i].cut)
      release(r, i, r.choices[i].sent, now, out);
  // Whoever drops it does so for good: not before a later life would know that it is closed.
  send_when(r.position, r.spec.request, options_.scheduler,
            proto::release_request{r.spec.request, withdraw}, out);
  --counts_.open;
  ++counts_.closed;
  if (r.keep_ms > 0)
    store(r, now, out);
}

result<void> journal_core::on_due(timer which, instant now, outbox& out) {
  if (which.kind == deadline_due)
    if (request* r = find(request_id{which.key}))
      expire(*r, now, out);
  if (which.kind == detached_due)
    if (request* r = find(request_id{which.key}))
      detached_too_long(*r, now, out);
  if (which.kind == stored_due)
    if (request* r = find(request_id{which.key})) {
      unstore(*r);
      forget_if_done(*r, now);
    }
  if (which.kind != resend_due)
    return {};
  armed_ = false;
  for (auto& [id, r] : requests_) {
    expire(*r, now, out);
    if (!r->closed && !r->admitted) {
      if (now - r->asked >= r->wait && r->position <= written_) {
        admit(*r, now, out);
        r->wait = longer(r->wait);
      }
      arm(out);
    }
    if (r->detached || (r->from_disk && r->keep))
      continue; // GATEWAY asks for it
    for (std::uint32_t i = 0; i < r->choices.size(); ++i) {
      choice& c = r->choices[i];
      if ((c.shown == c.settled && (!c.end_settled || c.end_shown))
          || planted("releases_not_resent"))
        continue; // nothing is missing there, or it is on its way to disk
      if (now - c.released >= c.wait) {
        reached("journal.releases_again");
        release(*r, i, c.shown, c.settled, now, out);
        c.wait = longer(c.wait);
      }
      arm(out);
    }
  }
  return {};
}

/// At its deadline a request is closed wherever it is; its rank is told to drop it.
void journal_core::expire(request& r, instant now, outbox& out) {
  if (r.closed || r.spec.deadline_ms == 0 || now - r.opened < deadline_span(r.spec.deadline_ms))
    return;
  out.count("di_journal_deadlines_passed_total");
  close(r, deadline_end(r.spec), true, now, out);
}

void journal_core::arm(outbox& out) {
  if (!armed_)
    out.arm({resend_due, 0}, options_.resend_after);
  armed_ = true;
}

void journal_core::check() const {
  std::uint64_t open = 0, stored_bytes = 0;
  std::size_t stored = 0;
  for (const auto& [id, r] : requests_) {
    open += !r->closed;
    stored += r->stored;
    stored_bytes += r->stored ? r->bytes : 0;
    DI_CHECK(!r->stored || (r->closed && stored_.contains({r->closed_ms, id})));
    DI_CHECK(!r->lingers || r->detached);
    DI_CHECK(r->dedup.empty() || dedup_.contains(r->dedup));
    // Whoever is done with is gone: nobody follows it, or all is shown, and nothing keeps it.
    DI_CHECK(!r->closed || r->stored || r->lingers || !r->detached || r->keep);
    DI_CHECK_EQ(r->choices.size(), r->spec.sampling.n);
    DI_CHECK(!forgotten_.contains(id.v));
    for (const choice& c : r->choices) {
      DI_CHECK(c.shown <= c.settled);
      DI_CHECK(c.settled <= c.next());
      DI_CHECK(c.ended() || !c.end_settled);
      DI_CHECK(c.shown <= c.sent);
      DI_CHECK(c.sent <= c.next());
      DI_CHECK(c.tokens.size() <= r->spec.sampling.max_tokens);
      DI_CHECK(c.logprobs.empty() || c.logprobs.size() == c.tokens.size());
      DI_CHECK(!r->closed || c.ended());
    }
  }
  DI_CHECK_EQ(open, counts_.open);
  DI_CHECK_EQ(stored, stored_.size());
  DI_CHECK_EQ(stored_bytes, stored_bytes_);
  DI_CHECK(dedup_.size() <= requests_.size());
}

} // namespace di::engine
