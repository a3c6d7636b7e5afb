// SPDX-License-Identifier: Apache-2.0
// Submitting and collecting a batch.
#include "engine/core/gateway_core.hpp"

#include "engine/core/deadline.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/base/trace.hpp"

#include <algorithm>

namespace di::engine {

namespace {

std::uint64_t us_between(instant from, instant to) {
  return static_cast<std::uint64_t>((to - from).count() / 1000);
}

} // namespace

gateway_core::gateway_core(gateway_options options, std::vector<proto::request_spec> requests)
    : options_{std::move(options)} {
  entries_.reserve(requests.size());
  for (proto::request_spec& spec : requests) {
    DI_CHECK(spec.sampling.n > 0);
    DI_CHECK(index_.emplace(spec.request, entries_.size()).second);
    prompt_tokens_ += spec.prompt.size();
    entry& e = entries_.emplace_back();
    e.choices.resize(spec.sampling.n);
    e.spec = std::move(spec);
  }
  DI_CHECK(options_.delivered <= entries_.size());
  next_ = finished_ = taken_ = options_.delivered;
  for (std::size_t i = 0; i < options_.delivered; ++i) {
    entries_[i].state = phase::finished;
    entries_[i].choices.clear();
  }
}

void gateway_core::delivered(std::size_t request, outbox& out) const {
  if (options_.keep && options_.tell_delivered)
    out.send(options_.journal, proto::answer_delivered{entries_[request].spec.request});
}

gateway_core::entry* gateway_core::find(request_id id) {
  const auto at = index_.find(id);
  return at == index_.end() ? nullptr : &entries_[at->second];
}

result<void> gateway_core::on(const proto::start_batch&, instant now, outbox& out) {
  begin(now, out);
  return {};
}

result<void> gateway_core::on(const proto::placement_settled&, instant now, outbox& out) {
  begin(now, out);
  return {};
}

void gateway_core::begin(instant now, outbox& out) {
  if (begun_)
    return;
  begun_ = true;
  began_ = now;
  for (std::size_t i = 0; i < options_.delivered; ++i)
    delivered(i, out);
  out.arm({resend_due, 0}, options_.resend_after);
  submit_more(now, out);
}

submit_options gateway_core::submit_of(std::size_t request) const {
  return request < options_.submit.size() ? options_.submit[request] : submit_options{};
}

void gateway_core::submit_more(instant now, outbox& out) {
  for (; next_ < entries_.size() && open_ < options_.window; ++next_, ++open_) {
    if (open_ > 0 && submit_of(next_).phase != submit_of(next_ - 1).phase)
      break;
    entry& e = entries_[next_];
    e.state = phase::submitted;
    e.submitted = e.sent = now;
    for (collected_choice& c : e.choices)
      c.submitted_us = us_between(began_, now);
    const trace::span submitting{trace::kind::submit,
                                 {.rows = static_cast<std::uint32_t>(e.spec.prompt.size())},
                                 e.spec.request};
    if (e.spec.deadline_ms > 0)
      out.arm({deadline_due, e.spec.request.v},
              deadline_span(e.spec.deadline_ms) + options_.deadline_grace);
    out.send(options_.journal, proto::open_request{e.spec, options_.keep});
  }
  if (done() && !options_.finished_to.empty())
    out.send(options_.finished_to, proto::batch_finished{entries_.size(), failed_, prompt_tokens_,
                                                         output_tokens_, us_between(began_, now)});
}

result<void> gateway_core::on(const proto::drain_batch&, instant now, outbox& out) {
  if (!begun_)
    began_ = now;
  begun_ = true;
  const bool news = next_ < entries_.size();
  for (; next_ < entries_.size(); ++next_) {
    entry& e = entries_[next_];
    e.state = phase::finished;
    e.spec.prompt = {};
    for (collected_choice& c : e.choices)
      c.end = {proto::finish_reason::error, -1, 0, ec::refused,
               "the run was stopped before this request began"};
    ++finished_;
    ++failed_;
  }
  if (news)
    submit_more(now, out); // tells if that was all
  return {};
}

result<void> gateway_core::on(const proto::request_opened& m, instant, outbox&) {
  if (entry* e = find(m.request); e && e->state == phase::submitted)
    e->state = phase::open;
  return {};
}

result<void> gateway_core::on(const proto::request_closed& m, instant now, outbox& out) {
  entry* e = find(m.request);
  if (!e || e->state == phase::finished || e->state == phase::waiting)
    return {};
  if (m.ask_again_ms > 0 && e->state == phase::submitted
      && now - e->submitted < options_.ask_again_for)
    return {}; // on_due() asks again
  end_rest(*e, m.end, now, out);
  return {};
}

/// Ends the choices that have not ended, and with them the request.
void gateway_core::end_rest(entry& e, const proto::choice_end& end, instant now, outbox& out) {
  for (collected_choice& c : e.choices)
    if (c.end.reason == proto::finish_reason::none) {
      c.end = end;
      c.end.kept_tokens = static_cast<std::uint32_t>(c.tokens.size());
      c.total_us = us_between(e.submitted, now);
    }
  finish(e, now, out);
}

result<void> gateway_core::on(const proto::tokens_released& m, instant now, outbox& out) {
  entry* e = find(m.request);
  if (!e || e->state == phase::waiting || m.choice >= e->spec.sampling.n)
    return {};
  // Taken already, or ended here at its deadline: nothing is missed any more.
  if (e->choices.empty() || e->state == phase::finished) {
    out.send(options_.journal,
             proto::release_acknowledged{
                 m.request, m.choice, m.first_index + static_cast<std::uint32_t>(m.tokens.size()),
                 m.end.reason != proto::finish_reason::none});
    return {};
  }
  const trace::span taking{
      trace::kind::release, {.rows = static_cast<std::uint32_t>(m.tokens.size())}, m.request};
  collected_choice& c = e->choices[m.choice];
  const auto have = static_cast<std::uint32_t>(c.tokens.size());
  const bool ended = c.end.reason != proto::finish_reason::none;
  if (m.first_index <= have && !ended) {
    if (e->state == phase::submitted)
      e->state = phase::open; // request_opened was lost
    const std::uint32_t skip =
        planted("shown_twice")
            ? 0
            : std::min<std::uint32_t>(have - m.first_index,
                                      static_cast<std::uint32_t>(m.tokens.size()));
    if (skip > 0)
      reached("gateway.repeated_tokens");
    if (have == 0 && m.tokens.size() > skip)
      c.first_token_us = us_between(e->submitted, now);
    c.tokens.insert(c.tokens.end(), m.tokens.begin() + skip, m.tokens.end());
    if (m.logprobs.size() == m.tokens.size())
      c.logprobs.insert(c.logprobs.end(), m.logprobs.begin() + skip, m.logprobs.end());
    if (submit_of(static_cast<std::size_t>(e - entries_.data())).token_times
        && c.tokens.size() > have) {
      c.token_us.resize(c.tokens.size(), us_between(began_, now));
      if (c.served_by.empty() || c.served_by.back().second != m.rank)
        c.served_by.emplace_back(have, m.rank);
    }
    output_tokens_ += m.tokens.size() - skip;
    c.attempts = m.attempts;
    if (m.end.reason != proto::finish_reason::none
        && m.first_index + m.tokens.size() == c.tokens.size()) {
      c.end = m.end;
      c.timings = m.timings;
      c.total_us = us_between(e->submitted, now);
    }
  }
  out.send(options_.journal, proto::release_acknowledged{
                                 m.request, m.choice, static_cast<std::uint32_t>(c.tokens.size()),
                                 c.end.reason != proto::finish_reason::none});
  const bool all = std::all_of(e->choices.begin(), e->choices.end(), [](const auto& x) {
    return x.end.reason != proto::finish_reason::none;
  });
  if (all)
    finish(*e, now, out);
  return {};
}

void gateway_core::finish(entry& e, instant now, outbox& out) {
  trace::mark(trace::kind::finish, e.spec.request);
  if (e.spec.deadline_ms > 0)
    out.disarm({deadline_due, e.spec.request.v});
  e.state = phase::finished;
  e.spec.prompt = {};
  --open_;
  ++finished_;
  failed_ += std::any_of(e.choices.begin(), e.choices.end(), [](const collected_choice& c) {
    return c.end.reason == proto::finish_reason::error;
  });
  out.count("di_gateway_requests_finished_total");
  submit_more(now, out);
}

result<void> gateway_core::on_due(timer which, instant now, outbox& out) {
  if (which.kind == deadline_due) {
    entry* e = find(request_id{which.key});
    if (e && e->state != phase::finished && e->state != phase::waiting) {
      out.count("di_gateway_deadlines_passed_total");
      out.send(options_.journal, proto::cancel_request{e->spec.request});
      end_rest(*e, deadline_end(e->spec), now, out);
    }
    return {};
  }
  if (which.kind != resend_due || done())
    return {};
  for (entry& e : entries_)
    if (e.state == phase::submitted && !planted("opening_not_resent")
        && now - e.sent >= options_.resend_after) {
      reached("gateway.submits_again");
      e.sent = now;
      out.send(options_.journal, proto::open_request{e.spec, options_.keep});
    }
  out.arm({resend_due, 0}, options_.resend_after);
  return {};
}

std::optional<std::vector<collected_choice>> gateway_core::take_finished() {
  if (taken_ == entries_.size() || entries_[taken_].state != phase::finished)
    return std::nullopt;
  return std::exchange(entries_[taken_++].choices, {});
}

std::optional<std::vector<collected_choice>> gateway_core::take_anyway() {
  if (taken_ == entries_.size())
    return std::nullopt;
  return std::exchange(entries_[taken_++].choices, {});
}

proto::gateway_state gateway_core::state() const {
  return {entries_.size() - next_, open_, finished_, failed_, output_tokens_};
}

void gateway_core::check() const {
  DI_CHECK(open_ <= options_.window);
  DI_CHECK_EQ(open_ + finished_ + (entries_.size() - next_), entries_.size());
  DI_CHECK(taken_ <= entries_.size());
  for (std::size_t i = taken_; i < entries_.size(); ++i)
    for (const collected_choice& c : entries_[i].choices)
      DI_CHECK(c.logprobs.empty() || c.logprobs.size() == c.tokens.size());
}

} // namespace di::engine
