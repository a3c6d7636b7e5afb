// SPDX-License-Identifier: Apache-2.0
// Recording, releasing and closing requests.
#include "engine/core/journal_core.hpp"

#include "engine/core/deadline.hpp"
#include "engine/core/expert_shard_core.hpp" // rank_path
#include "engine/core/resend.hpp"
#include "messaging/base/result.hpp"
#include "messaging/base/trace.hpp"

#include <algorithm>

namespace di::engine {

struct journal_core::choice {
  std::vector<token_id> tokens;
  std::vector<proto::position_logprobs> logprobs; ///< as tokens, or empty
  proto::choice_end end;
  proto::choice_timings timings;
  std::uint32_t shown = 0; ///< output index that GATEWAY has acknowledged up to
  std::uint32_t sent = 0;  ///< output index that was released up to at least once
  rank_id rank;            ///< that committed last
  bool end_shown = false;
  bool cut = false; ///< ended by JOURNAL, not by its rank
  instant released; ///< last time that something was sent to GATEWAY
  duration wait{};  ///< until it is sent again

  bool ended() const noexcept { return end.reason != proto::finish_reason::none; }
  std::uint32_t next() const noexcept { return static_cast<std::uint32_t>(tokens.size()); }
};

struct journal_core::request {
  proto::request_spec spec;
  std::uint32_t attempt = 1;
  std::vector<choice> choices;
  std::optional<life_of_rank> placed; ///< who owns the attempt
  bool admitted = false;
  bool closed = false;
  instant asked;   ///< last admit_request
  duration wait{}; ///< until the next
  instant opened;
};

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
  if (find(id)) {
    out.send(m.spec.gateway, proto::request_opened{id});
    return {};
  }
  if (closed_.contains(id.v))
    return {};
  const auto refuse = [&](ec code, std::string what) {
    out.count("di_journal_requests_refused_total");
    out.send(m.spec.gateway, proto::request_closed{
                                 id, {proto::finish_reason::error, -1, 0, code, std::move(what)}});
  };
  if (requests_.size() >= options_.open_max) {
    refuse(ec::unavailable, fmt::format("{} requests are open", requests_.size()));
    return {};
  }
  if (m.spec.sampling.n == 0 || m.spec.sampling.n > 1024) {
    refuse(ec::bad_argument, fmt::format("request {}: n={}", id.v, m.spec.sampling.n));
    return {};
  }
  auto made = std::make_unique<request>();
  made->spec = m.spec;
  made->choices.resize(m.spec.sampling.n);
  made->opened = now;
  made->wait = options_.resend_after;
  for (choice& c : made->choices)
    c.wait = options_.resend_after;
  request& r = *requests_.emplace(id, std::move(made)).first->second;
  ++counts_.open;
  out.count("di_journal_requests_total");
  if (m.spec.deadline_ms > 0)
    out.arm({deadline_due, id.v}, deadline_span(m.spec.deadline_ms));
  out.send(m.spec.gateway, proto::request_opened{id});
  admit(r, now, out);
  return {};
}

void journal_core::admit(request& r, instant now, outbox& out) {
  r.asked = now;
  proto::admit_request m{r.spec, r.attempt, {}, 0};
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
  out.send(options_.scheduler, std::move(m));
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

/// Somebody has the attempt. @return false: that life is no more, and another attempt was opened
bool journal_core::place(request& r, const life_of_rank& who, instant now, outbox& out) {
  r.placed = who;
  if (!has_left(who))
    return true;
  next_attempt(r, now, out);
  return false;
}

/// The owner is gone: from now on its tokens are refused, and another rank goes on.
void journal_core::next_attempt(request& r, instant now, outbox& out) {
  ++r.attempt;
  r.placed.reset();
  r.admitted = false;
  r.wait = options_.resend_after;
  out.count("di_journal_attempts_opened_total");
  admit(r, now, out);
}

result<void> journal_core::on(const proto::view_committed& m, instant now, outbox& out) {
  if (m.view <= view_)
    return {};
  std::set<life_of_rank> members;
  for (const proto::view_member& member : m.members)
    members.insert({member.rank, member.life});
  if (std::exchange(view_, m.view) == epoch{}) // lives that an earlier life of control knew
    for (const auto& [id, r] : requests_)
      if (r->placed)
        members_.insert(*r->placed);
  for (const life_of_rank& who : members_)
    if (!members.contains(who) && left_.insert(who).second)
      left_order_.push_back(who);
  for (; left_order_.size() > options_.left_kept; left_order_.pop_front())
    left_.erase(left_order_.front());
  members_ = std::move(members);
  for (auto& [id, r] : requests_) {
    if (r->closed)
      continue;
    if (r->placed && has_left(*r->placed)) {
      next_attempt(*r, now, out);
    } else if (!r->placed) { // what SCHEDULER said of it may be lost: ask again
      r->admitted = false;
      admit(*r, now, out);
    }
  }
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
  const bool current = r && m.attempt == r->attempt && m.choice < r->choices.size();
  if (current && r->choices[m.choice].ended()) {
    // All of it is known already; this also answers an end that was sent twice.
    const choice& c = r->choices[m.choice];
    counts_.repeated += m.tokens.size();
    if (!c.cut) {
      out.send(rank, proto::commit_accepted{m.request, m.choice, m.attempt, c.next(), true});
      return {};
    }
  }
  const bool alive = !current || r->closed || place(*r, {m.rank, m.life}, now, out);
  if (!current || r->closed || !alive) {
    ++counts_.refused;
    out.count("di_journal_commits_refused_total");
    out.send(rank, proto::commit_refused{m.request, m.attempt, r && !r->closed ? r->attempt : 0});
    return {};
  }
  choice& c = r->choices[m.choice];
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
    }
    append(c, m, known);
    c.rank = m.rank;
    if (c.sent < c.next() || c.ended())
      release(*r, m.choice, c.sent, now, out);
  }
  out.send(rank, proto::commit_accepted{m.request, m.choice, m.attempt, c.next(), c.ended()});
  if (std::all_of(r->choices.begin(), r->choices.end(), [](const choice& x) { return x.ended(); }))
    close(*r, {}, false, now, out);
  return {};
}

void journal_core::append(choice& c, const proto::tokens_committed& m, std::uint32_t skip) {
  const std::size_t added = m.tokens.size() - skip;
  c.tokens.insert(c.tokens.end(), m.tokens.begin() + skip, m.tokens.end());
  if (m.logprobs.size() == m.tokens.size())
    c.logprobs.insert(c.logprobs.end(), m.logprobs.begin() + skip, m.logprobs.end());
  counts_.tokens += added;
  if (m.end.reason != proto::finish_reason::none && m.first_index + m.tokens.size() == c.next()) {
    c.end = m.end;
    c.timings = m.timings;
  }
}

/// Sends GATEWAY the tokens from an index on, and the end if there is one.
void journal_core::release(request& r, std::uint32_t which, std::uint32_t from, instant now,
                           outbox& out) {
  choice& c = r.choices[which];
  proto::tokens_released m;
  m.request = r.spec.request;
  m.choice = which;
  m.first_index = from;
  m.tokens.assign(c.tokens.begin() + from, c.tokens.end());
  if (c.logprobs.size() == c.tokens.size())
    m.logprobs.assign(c.logprobs.begin() + from, c.logprobs.end());
  m.end = c.end;
  m.timings = c.timings;
  m.attempts = r.attempt;
  m.rank = c.rank;
  c.released = now;
  c.sent = c.next();
  out.send(r.spec.gateway, std::move(m));
  arm(out);
}

result<void> journal_core::on(const proto::release_acknowledged& m, instant, outbox&) {
  request* r = find(m.request);
  if (!r || m.choice >= r->choices.size())
    return {};
  choice& c = r->choices[m.choice];
  const std::uint32_t shown = std::min(m.next_index, c.next());
  if (shown > c.shown || (m.ended && c.ended()))
    c.wait = options_.resend_after;
  c.shown = std::max(c.shown, shown);
  c.end_shown = c.end_shown || (m.ended && c.ended());
  forget_if_done(*r);
  return {};
}

result<void> journal_core::on(const proto::cancel_request& m, instant now, outbox& out) {
  if (request* r = find(m.request); r && !r->closed)
    close(*r, {proto::finish_reason::cancelled, -1, 0, ec::cancelled, "cancelled by the client"},
          true, now, out);
  return {};
}

/// Ends what has not ended with `rest`, and tells GATEWAY and SCHEDULER.
void journal_core::close(request& r, const proto::choice_end& rest, bool withdraw, instant now,
                         outbox& out) {
  r.closed = true;
  if (r.spec.deadline_ms > 0)
    out.disarm({deadline_due, r.spec.request.v});
  for (std::uint32_t i = 0; i < r.choices.size(); ++i)
    if (!r.choices[i].ended()) {
      r.choices[i].end = rest;
      r.choices[i].end.kept_tokens = r.choices[i].next();
      r.choices[i].cut = true;
      release(r, i, r.choices[i].sent, now, out);
    }
  out.send(options_.scheduler, proto::release_request{r.spec.request, withdraw});
  --counts_.open;
  ++counts_.closed;
  if (closed_.insert(r.spec.request.v).second)
    closed_order_.push_back(r.spec.request.v);
  if (closed_order_.size() > options_.closed_kept) {
    closed_.erase(closed_order_.front());
    closed_order_.pop_front();
  }
}

void journal_core::forget_if_done(request& r) {
  const bool done =
      r.closed && std::all_of(r.choices.begin(), r.choices.end(), [](const choice& c) {
        return c.end_shown && c.shown == c.next();
      });
  if (done)
    requests_.erase(r.spec.request);
}

result<void> journal_core::on_due(timer which, instant now, outbox& out) {
  if (which.kind == deadline_due)
    if (request* r = find(request_id{which.key}))
      expire(*r, now, out);
  if (which.kind != resend_due)
    return {};
  armed_ = false;
  for (auto& [id, r] : requests_) {
    expire(*r, now, out);
    if (!r->closed && !r->admitted) {
      if (now - r->asked >= r->wait) {
        admit(*r, now, out);
        r->wait = longer(r->wait);
      }
      arm(out);
    }
    for (std::uint32_t i = 0; i < r->choices.size(); ++i) {
      choice& c = r->choices[i];
      if (c.shown == c.next() && (!c.ended() || c.end_shown))
        continue;
      if (now - c.released >= c.wait) {
        release(*r, i, c.shown, now, out);
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
  std::uint64_t open = 0;
  for (const auto& [id, r] : requests_) {
    open += !r->closed;
    DI_CHECK_EQ(r->choices.size(), r->spec.sampling.n);
    DI_CHECK(r->closed == closed_.contains(id.v));
    for (const choice& c : r->choices) {
      DI_CHECK(c.shown <= c.sent);
      DI_CHECK(c.sent <= c.next());
      DI_CHECK(c.tokens.size() <= r->spec.sampling.max_tokens);
      DI_CHECK(c.logprobs.empty() || c.logprobs.size() == c.tokens.size());
      DI_CHECK(!r->closed || c.ended());
    }
  }
  DI_CHECK_EQ(open, counts_.open);
}

} // namespace di::engine
