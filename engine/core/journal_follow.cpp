// SPDX-License-Identifier: Apache-2.0
// Who follows a request: opening it twice, attaching, leaving, ending what is not wanted any more,
// and how long a request is kept after its end.
#include "engine/core/deadline.hpp"
#include "engine/core/expert_shard_core.hpp" // rank_path
#include "engine/core/journal_request.hpp"
#include "messaging/base/probe.hpp"

#include <algorithm>

namespace di::engine {
namespace {

const proto::choice_end client_left{proto::finish_reason::cancelled, -1, 0, ec::cancelled,
                                    "its client left"};

/// [ms] since `then`; 0 if the clock of the journal has not come so far again.
std::uint64_t age_ms(std::uint64_t now, std::uint64_t then) {
  return now - std::min(now, then);
}

bool lies_under(const address& path, const address& prefix) {
  return path.starts_with(prefix) && (path.size() == prefix.size() || path[prefix.size()] == '/');
}

} // namespace

bool journal_core::request::came_to_nothing() const {
  return closed && std::all_of(choices.begin(), choices.end(), [](const choice& c) {
           return c.end.reason == proto::finish_reason::error
                  || c.end.reason == proto::finish_reason::cancelled;
         });
}

journal_core::request& journal_core::make_request(const proto::open_request& m, instant now) {
  auto made = std::make_unique<request>();
  made->spec = m.spec;
  made->choices.resize(m.spec.sampling.n);
  made->opened = now;
  made->keep = m.keep;
  made->wait = options_.resend_after;
  for (choice& c : made->choices)
    c.wait = options_.resend_after;
  made->note = m.note;
  made->dedup = m.dedup;
  made->dedup_digest = m.dedup_digest;
  made->keep_ms = std::max(m.keep_ms, m.detached_ms); // what GATEWAY has its client may not have
  made->detached_ms = m.detached_ms;
  const auto gateway = gateways_.find(m.spec.gateway);
  if (gateway != gateways_.end())
    made->follower = gateway->second;
  made->attended = gateway != gateways_.end() || m.keep_ms > 0 || m.detached_ms > 0;
  if (!m.dedup.empty())
    dedup_[m.dedup] = m.spec.request;
  ++counts_.open;
  return *requests_.emplace(m.spec.request, std::move(made)).first->second;
}

/// Of requests with the same dedup all but one had come to nothing.
void journal_core::take_over_dedup(request& r) {
  if (r.dedup.empty())
    return;
  request_id& known = dedup_[r.dedup];
  if (request* other = find(known); other && !other->came_to_nothing())
    return r.dedup.clear();
  else if (other)
    other->dedup.clear();
  known = r.spec.request;
}

/// Whether another request is the same one, and GATEWAY was told. One that came to nothing makes
/// way for a new try.
bool journal_core::answer_known(const proto::open_request& m, outbox& out) {
  const auto at = m.dedup.empty() ? dedup_.end() : dedup_.find(m.dedup);
  if (at == dedup_.end())
    return false;
  request& known = *find(at->second);
  const bool same = known.dedup_digest == m.dedup_digest;
  if (known.came_to_nothing() && same) {
    known.dedup.clear();
    dedup_.erase(at);
    return false;
  }
  out.count("di_journal_requests_known_total");
  reached("journal.knows_request");
  const bool recorded = known.closed || known.position <= written_;
  send_when(recorded ? 0 : known.position, known.spec.request, m.spec.gateway,
            proto::request_known{m.spec.request, known.spec.request, same}, out);
  return true;
}

/// From now on `gateway` gets what is released, beginning at an index of each choice.
void journal_core::attach(request& r, const address& gateway,
                          const std::vector<std::uint32_t>& from, instant now, outbox& out) {
  if (!r.detached && r.spec.gateway != gateway) {
    reached("journal.changes_follower");
    out.send(r.spec.gateway, proto::request_taken_over{r.spec.request});
  }
  r.spec.gateway = gateway;
  const auto life = gateways_.find(gateway);
  r.follower = life == gateways_.end() ? incarnation{} : life->second;
  r.attended = true;
  r.detached = r.lingers = r.from_disk = false;
  out.disarm({detached_due, r.spec.request.v});
  for (std::uint32_t i = 0; i < r.choices.size(); ++i) {
    choice& c = r.choices[i];
    c.shown = std::min(i < from.size() ? from[i] : 0, c.settled);
    c.sent = std::max(c.sent, c.shown);
    c.end_shown = false;
    c.wait = options_.resend_after;
    if (c.settled > c.shown || c.end_settled)
      release(r, i, c.shown, c.settled, now, out);
    if (c.settled < c.next() || (c.ended() && !c.end_settled))
      release(r, i, c.settled, c.next(), now, out);
  }
}

result<void> journal_core::on(const proto::attach_request& m, reply_to ticket, instant now,
                              outbox& out) {
  request* r = find(m.request);
  proto::request_attached answer;
  answer.request = m.request;
  answer.known = r != nullptr;
  if (!r) {
    out.reply(ticket, std::move(answer));
    return {};
  }
  if (m.brief && !r->detached && r->spec.gateway != m.gateway) { // it has not heard of that yet
    out.send(m.gateway, proto::request_taken_over{m.request});
    out.reply(ticket, std::move(answer));
    return {};
  }
  if (r->detached)
    reached("journal.resumes_detached");
  if (!m.brief) {
    answer.spec = r->spec;
    answer.spec.gateway = m.gateway;
    answer.note = r->note;
  }
  answer.age_ms = age_ms(elapsed_ms(now), r->opened_ms);
  answer.closed = r->closed;
  const bool written = std::any_of(r->choices.begin(), r->choices.end(),
                                   [](const choice& c) { return c.settled > 0 || c.end_settled; });
  hold(written ? 0 : r->position, m.request, effect::reply{ticket, parcel::of(std::move(answer))},
       out);
  attach(*r, m.gateway, m.from, now, out);
  return {};
}

result<proto::recorded_request> journal_core::on(const proto::get_request& m, instant now,
                                                 outbox&) const {
  const auto at = requests_.find(m.request);
  proto::recorded_request answer;
  answer.request = m.request;
  answer.known = at != requests_.end();
  if (!answer.known)
    return answer;
  const request& r = *at->second;
  answer.spec = r.spec;
  answer.note = r.note;
  answer.age_ms = age_ms(elapsed_ms(now), r.opened_ms);
  answer.closed = r.closed;
  answer.cached_tokens = r.cached_tokens;
  for (const choice& c : r.choices) {
    proto::recorded_choice& into = answer.choices.emplace_back();
    into.tokens.assign(c.tokens.begin(), c.tokens.begin() + c.settled);
    if (c.logprobs.size() == c.tokens.size())
      into.logprobs.assign(c.logprobs.begin(), c.logprobs.begin() + c.settled);
    if (c.end_settled) {
      into.end = c.end;
      into.timings = c.timings;
    } else {
      answer.closed = false; // its end is on its way to disk
    }
  }
  return answer;
}

/// Nobody follows it: it goes on, or is kept, for detached_ms; 0: it ends now.
/// @post it may be gone
void journal_core::detach(request& r, instant now, outbox& out) {
  if (r.detached || r.keep)
    return;
  reached("journal.detaches");
  out.count("di_journal_requests_detached_total");
  r.detached = true;
  r.lingers = r.detached_ms > 0 && !r.stored;
  if (r.lingers)
    out.arm({detached_due, r.spec.request.v}, deadline_span(r.detached_ms));
  else if (!r.closed)
    close(r, client_left, true, now, out);
  forget_if_done(r, now);
}

template <class F>
void journal_core::detach_all(F&& of, instant now, outbox& out) {
  std::vector<request_id> lost;
  for (const auto& [id, r] : requests_)
    if (!r->detached && of(*r))
      lost.push_back(id);
  for (const request_id id : lost)
    if (request* const r = find(id)) // one before it may have evicted it from what is kept
      detach(*r, now, out);
}

void journal_core::detached_too_long(request& r, instant now, outbox& out) {
  if (!std::exchange(r.lingers, false))
    return;
  if (!r.closed) {
    reached("journal.cancels_detached");
    out.count("di_journal_requests_abandoned_total");
    close(r, client_left, true, now, out);
  }
  forget_if_done(r, now);
}

result<void> journal_core::on(const proto::detach_request& m, instant now, outbox& out) {
  request* r = find(m.request);
  if (r && (m.gateway.empty() || r->spec.gateway == m.gateway))
    detach(*r, now, out);
  return {};
}

result<void> journal_core::on(const proto::gateway_started& m, instant now, outbox& out) {
  gateways_[m.gateway] = m.life;
  detach_all(
      [&m](request& r) {
        if (r.spec.gateway != m.gateway)
          return false;
        r.attended = true;
        if (r.follower.v == 0)
          r.follower = m.life; // opened before this was heard
        return r.follower != m.life;
      },
      now, out);
  return {};
}

result<void> journal_core::on(const proto::withdrawn& m, instant now, outbox& out) {
  std::erase_if(gateways_, [&m](const auto& known) {
    return known.second == m.life && lies_under(known.first, m.prefix);
  });
  detach_all(
      [&m](const request& r) {
        return lies_under(r.spec.gateway, m.prefix) && (r.follower == m.life || r.follower.v == 0);
      },
      now, out);
  return {};
}

result<void> journal_core::on(const proto::cancel_request& m, const origin& from, instant now,
                              outbox& out) {
  const proto::choice_end end{proto::finish_reason::cancelled, -1, 0, ec::cancelled,
                              "cancelled by the client"};
  request* r = find(m.request);
  if (r && !r->closed)
    close(*r, end, true, now, out);
  if (!from.from.empty()) // it asks again until it hears this
    send_when(r ? r->position : 0, m.request, from.from, proto::request_closed{m.request, end},
              out);
  return {};
}

/// GATEWAY found the end of a choice. Its rank hears of it at once, and again with its next commit.
result<void> journal_core::on(const proto::end_choice& m, instant now, outbox& out) {
  request* r = find(m.request);
  if (!r || r->closed || m.choice >= r->choices.size() || r->choices[m.choice].ended())
    return {};
  reached("journal.ends_choice");
  choice& c = r->choices[m.choice];
  c.end = {proto::finish_reason::stop, m.stop_index, std::min(m.kept_tokens, c.next()), ec::ok, {}};
  record_tokens(*r, m.choice, c.next(), now);
  release(*r, m.choice, c.sent, now, out);
  if (r->placed)
    send_when(c.position, m.request, rank_path(r->placed->first),
              proto::commit_accepted{m.request, m.choice, r->attempt, c.next(), true}, out);
  if (std::all_of(r->choices.begin(), r->choices.end(), [](const choice& x) { return x.ended(); }))
    close(*r, {}, true, now, out);
  return {};
}

result<void> journal_core::on(const proto::forget_request& m, reply_to ticket, instant now,
                              outbox& out) {
  request* r = find(m.request);
  const bool existed = r != nullptr;
  if (r) {
    if (!r->closed)
      close(*r, client_left, true, now, out);
    unstore(*r);
    r->keep = r->lingers = false;
    r->detached = true;
    forget_if_done(*r, now);
  }
  hold(existed ? position_ : 0, m.request,
       effect::reply{ticket, parcel::of(proto::request_forgotten{m.request, existed})}, out);
  return {};
}

void journal_core::forget_if_done(request& r, instant now) {
  if (!r.closed || (r.keep && !r.delivered) || r.stored || r.lingers)
    return;
  if (r.detached || std::all_of(r.choices.begin(), r.choices.end(), [](const choice& c) {
        return c.all_shown();
      })) {
    record_forgotten(r, now);
    requests_.erase(r.spec.request);
  }
}

/// It has ended, and is kept for a while; the oldest make way for it.
void journal_core::store(request& r, instant now, outbox& out) {
  r.stored = true;
  r.lingers = false;
  stored_.emplace(r.closed_ms, r.spec.request);
  stored_bytes_ += r.bytes;
  const std::uint64_t age = age_ms(elapsed_ms(now), r.closed_ms);
  out.arm({stored_due, r.spec.request.v}, deadline_span(r.keep_ms - std::min(r.keep_ms, age) + 1));
  while (stored_bytes_ > options_.stored_bytes_max && stored_.begin()->second != r.spec.request) {
    request& oldest = *find(stored_.begin()->second);
    out.disarm({stored_due, oldest.spec.request.v});
    out.count("di_journal_stored_evicted_total");
    unstore(oldest);
    forget_if_done(oldest, now);
  }
}

void journal_core::unstore(request& r) {
  if (!std::exchange(r.stored, false))
    return;
  stored_.erase({r.closed_ms, r.spec.request});
  stored_bytes_ -= std::min(stored_bytes_, r.bytes);
}

/// Requests of an earlier life: gateways that are still there attach again, in time.
void journal_core::resume_following(instant now, outbox& out) {
  std::vector<request*> known;
  for (const auto& [id, r] : requests_)
    known.push_back(r.get());
  std::sort(known.begin(), known.end(),
            [](const request* a, const request* b) { return a->closed_ms < b->closed_ms; });
  for (request* r : known) {
    if (r->closed && r->keep_ms > 0) {
      store(*r, now, out);
    } else if (r->detached) {
      r->lingers = true;
      out.arm({detached_due, r->spec.request.v},
              std::max<duration>(options_.orphaned_after, deadline_span(r->detached_ms)));
    }
  }
}

} // namespace di::engine
