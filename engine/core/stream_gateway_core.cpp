// SPDX-License-Identifier: Apache-2.0
// Opening, following and ending requests of clients.
#include "engine/core/stream_gateway_core.hpp"

#include "engine/core/deadline.hpp"
#include "engine/core/resend.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/base/trace.hpp"

#include <algorithm>

namespace di::engine {
namespace {

namespace news = stream_news;

constexpr std::uint32_t busy_again_ms = 1000;

proto::choice_end failure(ec code, std::string what) {
  return {proto::finish_reason::error, -1, 0, code, std::move(what)};
}

proto::choice_end withdrawn_end() {
  return {proto::finish_reason::cancelled, -1, 0, ec::cancelled, "cancelled by the client"};
}

} // namespace

stream_gateway_core::stream_gateway_core(stream_gateway_options options)
    : options_{std::move(options)}, announce_wait_{options_.resend_after} {
}

stream_gateway_core::entry* stream_gateway_core::find(request_id id) {
  const auto at = entries_.find(id);
  return at == entries_.end() ? nullptr : &at->second;
}

stream_gateway_core::entry& stream_gateway_core::make(request_id id, phase state, instant now) {
  entry& e = entries_[id];
  e.state = state;
  e.submitted = e.heard = now;
  ++in_phase_[static_cast<std::size_t>(state)];
  return e;
}

void stream_gateway_core::become(entry& e, phase next) {
  --in_phase_[static_cast<std::size_t>(e.state)];
  ++in_phase_[static_cast<std::size_t>(next)];
  e.state = next;
}

void stream_gateway_core::start(instant, outbox& out) {
  announce(out);
}

/// Said again until something comes from JOURNAL, for some seconds.
void stream_gateway_core::announce(outbox& out) {
  out.send(options_.journal, proto::gateway_started{options_.self, options_.life});
  if (announce_wait_ < resend_most) // then JOURNAL has it, or will be asked for something
    out.arm({announce_due, 0}, announce_wait_);
  announce_wait_ = longer(announce_wait_);
}

void stream_gateway_core::heard(outbox& out) {
  if (!std::exchange(heard_, true))
    out.disarm({announce_due, 0});
}

void stream_gateway_core::submit(proto::open_request m, instant now, outbox& out) {
  const request_id id = m.spec.request;
  const std::size_t waits = count(phase::waiting);
  if (draining_ || waits >= options_.waiting_max) {
    ++counts_.failed;
    out.count("di_gateway_requests_refused_total");
    news_.emplace_back(news::ended{
        id,
        failure(ec::unavailable, draining_ ? "this gateway takes no more requests"
                                           : fmt::format("{} requests wait already", waits)),
        busy_again_ms});
    return;
  }
  entry& e = make(id, phase::waiting, now);
  e.choices.resize(m.spec.sampling.n);
  e.order = std::move(m);
  e.order.spec.gateway = options_.self;
  if (e.order.spec.deadline_ms > 0)
    out.arm({deadline_due, id.v},
            deadline_span(e.order.spec.deadline_ms) + options_.deadline_grace);
  waiting_.push_back(id);
  open_more(now, out);
}

void stream_gateway_core::open_more(instant now, outbox& out) {
  while (!waiting_.empty() && windowed_ < options_.window) {
    entry* e = find(waiting_.front());
    waiting_.pop_front();
    if (!e || e->state != phase::waiting)
      continue;
    become(*e, phase::submitted);
    e->windowed = true;
    ++windowed_;
    // JOURNAL counts from when it hears of it.
    if (std::uint64_t& left = e->order.spec.deadline_ms; left > 0) {
      const auto waited = std::chrono::floor<std::chrono::milliseconds>(now - e->submitted).count();
      left = std::max<std::uint64_t>(1, left - std::min(left, static_cast<std::uint64_t>(waited)));
    }
    send_open(*e, now, out);
  }
}

void stream_gateway_core::send_open(entry& e, instant now, outbox& out) {
  const trace::span submitting{trace::kind::submit,
                               {.rows = static_cast<std::uint32_t>(e.order.spec.prompt.size())},
                               e.order.spec.request};
  e.sent = now;
  out.send(options_.journal, e.order);
  arm(out);
}

/// It is gone; whoever waits for its window may go.
void stream_gateway_core::drop(request_id id, instant now, outbox& out) {
  const auto at = entries_.find(id);
  entry& e = at->second;
  if (e.order.spec.deadline_ms > 0)
    out.disarm({deadline_due, id.v});
  --in_phase_[static_cast<std::size_t>(e.state)];
  windowed_ -= e.windowed;
  if (e.question != 0)
    drop_question(e.question);
  entries_.erase(at);
  open_more(now, out);
}

/// Tells its client that it ended as a whole.
void stream_gateway_core::end(request_id id, const proto::choice_end& why,
                              std::uint32_t ask_again_ms, instant now, outbox& out) {
  const entry& e = entries_.at(id);
  if (!e.left && e.state != phase::cancelling)
    news_.emplace_back(news::ended{id, why, ask_again_ms});
  counts_.failed += why.reason == proto::finish_reason::error;
  drop(id, now, out);
}

/// From now on it only waits for JOURNAL's word that it is closed.
void stream_gateway_core::send_cancel(request_id id, entry& e, instant now, outbox& out) {
  if (e.state != phase::cancelling) {
    if (e.order.spec.deadline_ms > 0)
      out.disarm({deadline_due, id.v});
    if (e.question != 0)
      drop_question(std::exchange(e.question, 0));
    windowed_ -= std::exchange(e.windowed, false);
    e.order = {};
    e.choices.clear();
    become(e, phase::cancelling);
  }
  e.sent = now;
  out.send(options_.journal, proto::cancel_request{id});
  arm(out);
}

void stream_gateway_core::withdraw(request_id id, entry& e, instant now, outbox& out) {
  if (e.state == phase::waiting)
    return drop(id, now, out);
  send_cancel(id, e, now, out);
  open_more(now, out);
}

void stream_gateway_core::cancel(request_id id, instant now, outbox& out) {
  entry* e = find(id);
  if (!e) { // of another gateway, or a stored one
    send_cancel(id, make(id, phase::cancelling, now), now, out);
    return;
  }
  if (e->state != phase::cancelling) {
    ++counts_.cancelled;
    out.count("di_gateway_requests_cancelled_total");
    if (e->state == phase::attaching && e->question != 0)
      refuse(questions_.at(e->question), {ec::cancelled, "the request was cancelled"});
    else if (!e->left)
      news_.emplace_back(news::ended{id, withdrawn_end(), 0});
  }
  withdraw(id, *e, now, out);
}

void stream_gateway_core::stop(request_id id, instant now, outbox& out) {
  entry* e = find(id);
  if (!e || e->left || e->state != phase::open)
    return cancel(id, now, out);
  if (std::exchange(e->stopping, true))
    return;
  ++counts_.cancelled;
  out.count("di_gateway_requests_cancelled_total");
  e->sent = now;
  out.send(options_.journal, proto::cancel_request{id});
  arm(out);
}

void stream_gateway_core::leave(request_id id, instant now, outbox& out) {
  entry* e = find(id);
  if (!e || e->left || e->state == phase::cancelling)
    return;
  ++counts_.cancelled;
  out.count("di_gateway_requests_left_total");
  const bool ours = e->state != phase::attaching && e->windowed;
  if (e->state == phase::attaching && e->question != 0)
    refuse(questions_.at(e->question), {ec::cancelled, "its client left"});
  if ((e->state == phase::waiting || ours) && e->order.detached_ms == 0)
    return withdraw(id, *e, now, out);
  if (e->state == phase::waiting || e->state == phase::submitted) {
    e->left = true; // detached once it is opened
    return;
  }
  let_go(id, now, out);
}

/// Nobody follows it here any more, or ever did.
void stream_gateway_core::let_go(request_id id, instant now, outbox& out) {
  out.send(options_.journal, proto::detach_request{id, options_.self});
  if (find(id))
    drop(id, now, out);
}

void stream_gateway_core::end_choice(proto::end_choice m, instant now, outbox& out) {
  entry* e = find(m.request);
  if (!e || e->state != phase::open || m.choice >= e->choices.size() || e->choices[m.choice].ended
      || e->choices[m.choice].ending)
    return;
  e->choices[m.choice].ending = m;
  e->sent = now;
  out.send(options_.journal, m);
  arm(out);
}

result<void> stream_gateway_core::on(const proto::request_opened& m, instant now, outbox& out) {
  heard(out);
  entry* e = find(m.request);
  if (!e || e->left) {
    let_go(m.request, now, out);
    return {};
  }
  e->heard = now;
  if (e->state == phase::submitted) {
    become(*e, phase::open);
    arm(out);
    news_.emplace_back(news::opened{m.request});
  }
  return {};
}

result<void> stream_gateway_core::on(const proto::request_known& m, instant now, outbox& out) {
  entry* e = find(m.request);
  if (!e || (e->state != phase::submitted && e->state != phase::cancelling))
    return {};
  if (e->state == phase::submitted && !e->left)
    news_.emplace_back(news::known{m.request, m.known, m.same});
  drop(m.request, now, out);
  return {};
}

result<void> stream_gateway_core::on(const proto::request_closed& m, instant now, outbox& out) {
  entry* e = find(m.request);
  if (!e || e->state == phase::waiting || e->state == phase::attaching)
    return {};
  end(m.request, m.end, m.ask_again_ms, now, out);
  return {};
}

result<void> stream_gateway_core::on(const proto::request_taken_over& m, instant now, outbox& out) {
  entry* e = find(m.request);
  if (!e || e->state != phase::open)
    return {}; // it was attached to again since
  end(m.request,
      {proto::finish_reason::cancelled, -1, 0, ec::moved, "another connection follows it"}, 0, now,
      out);
  return {};
}

result<void> stream_gateway_core::on(const proto::tokens_released& m, instant now, outbox& out) {
  heard(out);
  entry* e = find(m.request);
  const auto next = m.first_index + static_cast<std::uint32_t>(m.tokens.size());
  const bool last = m.end.reason != proto::finish_reason::none;
  if (!e || e->left) {
    let_go(m.request, now, out);
    return {};
  }
  if (e->state == phase::cancelling) // nothing is missed any more
    out.send(options_.journal, proto::release_acknowledged{m.request, m.choice, next, last});
  if (e->state == phase::submitted) { // request_opened was lost
    become(*e, phase::open);
    news_.emplace_back(news::opened{m.request});
  }
  if (e->state != phase::open || m.choice >= e->choices.size())
    return {}; // what comes before the answer to attach_request comes again
  const trace::span taking{
      trace::kind::release, {.rows = static_cast<std::uint32_t>(m.tokens.size())}, m.request};
  arm(out);
  if (m.first_index > e->choices[m.choice].have) { // JOURNAL believes that more has come
    follow_again(m.request, *e, now, out);
    return {};
  }
  e->heard = now;
  take(*e, m, now, out);
  return {};
}

bool stream_gateway_core::all_ended(const entry& e) {
  return std::all_of(e.choices.begin(), e.choices.end(), [](const choice& c) { return c.ended; });
}

void stream_gateway_core::take(entry& e, const proto::tokens_released& m, instant now,
                               outbox& out) {
  choice& c = e.choices[m.choice];
  if (!c.ended) {
    const std::uint32_t skip = std::min<std::uint32_t>(c.have - m.first_index,
                                                       static_cast<std::uint32_t>(m.tokens.size()));
    if (skip > 0)
      reached("gateway.repeated_tokens");
    proto::tokens_released fresh = m;
    fresh.first_index = c.have;
    fresh.tokens.erase(fresh.tokens.begin(), fresh.tokens.begin() + skip);
    if (m.logprobs.size() == m.tokens.size())
      fresh.logprobs.erase(fresh.logprobs.begin(), fresh.logprobs.begin() + skip);
    c.have += static_cast<std::uint32_t>(fresh.tokens.size());
    c.ended = m.end.reason != proto::finish_reason::none;
    counts_.output_tokens += fresh.tokens.size();
    if (!fresh.tokens.empty() && !std::exchange(e.shown, true)) {
      e.order.spec.prompt = {}; // it is never opened again
      e.order.note = {};
    }
    if (c.ended)
      c.ending.reset();
    if (!fresh.tokens.empty() || c.ended)
      news_.emplace_back(news::tokens{std::move(fresh), all_ended(e)});
  }
  out.send(options_.journal, proto::release_acknowledged{m.request, m.choice, c.have, c.ended});
  if (!all_ended(e))
    return;
  ++counts_.finished;
  counts_.failed += m.end.reason == proto::finish_reason::error;
  out.count("di_gateway_requests_finished_total");
  trace::mark(trace::kind::finish, m.request);
  drop(m.request, now, out);
}

stream_counts stream_gateway_core::counts() const {
  stream_counts c = counts_;
  c.waiting = count(phase::waiting) + count(phase::submitted);
  c.open = count(phase::open) + count(phase::attaching);
  return c;
}

void stream_gateway_core::check() const {
  std::array<std::size_t, 5> in_phase{};
  std::size_t windowed = 0;
  for (const auto& [id, e] : entries_) {
    ++in_phase[static_cast<std::size_t>(e.state)];
    windowed += e.windowed;
    DI_CHECK((e.state == phase::waiting || e.state == phase::cancelling) <= !e.windowed);
    DI_CHECK(e.question == 0 || questions_.contains(e.question));
    DI_CHECK(e.state != phase::attaching || e.question != 0);
    DI_CHECK(e.state == phase::cancelling || e.state == phase::attaching || !e.choices.empty());
  }
  DI_CHECK(in_phase == in_phase_);
  DI_CHECK_EQ(windowed, windowed_);
  DI_CHECK(windowed_ <= options_.window);
  DI_CHECK(count(phase::waiting) == 0 || windowed_ == options_.window);
}

} // namespace di::engine
