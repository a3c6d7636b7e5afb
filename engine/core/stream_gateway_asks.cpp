// SPDX-License-Identifier: Apache-2.0
// Questions to JOURNAL, and what is said again until it answers.
#include "engine/core/deadline.hpp"
#include "engine/core/stream_gateway_core.hpp"
#include "messaging/base/probe.hpp"

#include <algorithm>

namespace di::engine {
namespace {

namespace news = stream_news;

/// JOURNAL itself said no; everything else may be a JOURNAL that is not there just now.
bool is_final(ec code) {
  return code == ec::bad_argument || code == ec::unknown_message || code == ec::limit_exceeded;
}

error not_known(request_id id) {
  return {ec::not_found, fmt::format("there is no request {}", id.v)};
}

} // namespace

std::uint64_t stream_gateway_core::ask(question q, instant now, outbox& out) {
  const std::uint64_t tag = ++last_tag_;
  ask_now(tag, questions_[tag] = q, now, out);
  return tag;
}

void stream_gateway_core::ask_now(std::uint64_t tag, question& q, instant, outbox& out) {
  q.out = true;
  const duration within = options_.answer_within;
  switch (q.what) {
  case kind::attach:
  case kind::follow: {
    proto::attach_request m{q.request, options_.self, {}, q.what == kind::follow};
    for (const choice& c : entries_.at(q.request).choices)
      m.from.push_back(c.have);
    out.request(options_.journal, std::move(m), tag, within);
    break;
  }
  case kind::get:
    out.request(options_.journal, proto::get_request{q.request}, tag, within);
    break;
  case kind::forget:
    out.request(options_.journal, proto::forget_request{q.request}, tag, within);
    break;
  }
}

/// Answers a question with an error.
void stream_gateway_core::refuse(const question& q, error why) {
  if (q.what == kind::attach)
    news_.emplace_back(news::attached{q.ticket, q.request, fail(std::move(why))});
  else if (q.what == kind::get)
    news_.emplace_back(news::recorded{q.ticket, fail(std::move(why))});
  else if (q.what == kind::forget)
    news_.emplace_back(news::forgotten{q.ticket, fail(std::move(why))});
}

void stream_gateway_core::attach(std::uint64_t ticket, request_id id,
                                 std::vector<std::uint32_t> from, instant now, outbox& out) {
  const question q{kind::attach, id, ticket, now, false};
  entry* e = find(id);
  if (draining_)
    return refuse(q, {ec::unavailable, "this gateway takes no more requests"});
  if (e && e->state == phase::waiting)
    return refuse(q, {ec::unavailable, fmt::format("request {} is not opened yet", id.v)});
  if (e && e->state == phase::cancelling)
    return refuse(q, not_known(id));
  if (e) { // a newer connection of its client
    if (e->state == phase::attaching)
      refuse(questions_.at(e->question), {ec::moved, "another connection follows it"});
    else if (!e->left)
      news_.emplace_back(news::ended{
          id,
          {proto::finish_reason::cancelled, -1, 0, ec::moved, "another connection follows it"},
          0});
    if (e->question != 0)
      drop_question(std::exchange(e->question, 0));
  } else {
    e = &make(id, phase::attaching, now);
  }
  become(*e, phase::attaching);
  e->left = false;
  e->heard = now;
  e->choices.assign(from.size(), {});
  for (std::size_t i = 0; i < from.size(); ++i)
    e->choices[i].have = from[i];
  e->question = ask(q, now, out);
}

void stream_gateway_core::get(std::uint64_t ticket, request_id id, instant now, outbox& out) {
  ask({kind::get, id, ticket, now, false}, now, out);
}

void stream_gateway_core::forget(std::uint64_t ticket, request_id id, instant now, outbox& out) {
  ask({kind::forget, id, ticket, now, false}, now, out);
}

/// JOURNAL may know nothing of who follows it.
void stream_gateway_core::follow_again(request_id id, entry& e, instant now, outbox& out) {
  reached("gateway.follows_again");
  if (e.question == 0)
    e.question = ask({kind::follow, id, 0, now, false}, now, out);
}

/// JOURNAL does not know it any more. What nobody has seen a token of is opened again.
void stream_gateway_core::lost(request_id id, entry& e, instant now, outbox& out) {
  out.count("di_gateway_requests_lost_total");
  if (e.windowed && !e.shown && !e.order.spec.prompt.empty()) {
    become(e, phase::submitted);
    send_open(e, now, out);
    return;
  }
  end(id,
      {proto::finish_reason::error, -1, 0, ec::unavailable,
       fmt::format("request {} was lost with the control process", id.v)},
      0, now, out);
}

result<void> stream_gateway_core::on_answer(std::uint64_t tag, const result<parcel>& answer,
                                            instant now, outbox& out) {
  const auto at = questions_.find(tag);
  if (at == questions_.end())
    return {};
  question& q = at->second;
  q.out = false;
  if (answer)
    heard(out);
  if (!answer && !is_final(answer.error().code)
      && (q.what == kind::follow || now - q.since < options_.questions_within)) {
    arm(out); // asked again then
    return {};
  }
  question done = q;
  if (q.what == kind::attach || q.what == kind::follow)
    entries_.at(q.request).question = 0;
  questions_.erase(at);
  if (!answer && done.what != kind::follow) {
    refuse(done, is_final(answer.error().code)
                     ? answer.error()
                     : error{ec::unavailable, "JOURNAL: " + answer.error().render()});
    if (done.what == kind::attach)
      drop(done.request, now, out);
    return {};
  }
  if (done.what == kind::attach || done.what == kind::follow) {
    attach_answered(done, answer, now, out);
  } else if (const auto* m = answer ? answer->as<proto::recorded_request>() : nullptr) {
    if (m->known)
      news_.emplace_back(news::recorded{done.ticket, *m});
    else
      refuse(done, not_known(done.request));
  } else if (const auto* f = answer ? answer->as<proto::request_forgotten>() : nullptr) {
    news_.emplace_back(news::forgotten{done.ticket, *f});
  }
  return {};
}

void stream_gateway_core::attach_answered(question& q, const result<parcel>& answer, instant now,
                                          outbox& out) {
  entry& e = entries_.at(q.request);
  const auto* m = answer ? answer->as<proto::request_attached>() : nullptr;
  e.heard = now;
  if (!m)
    return; // follow: once more when it has been quiet again
  if (q.what == kind::follow) {
    if (!m->known)
      lost(q.request, e, now, out);
    return;
  }
  if (!m->known) {
    refuse(q, not_known(q.request));
    drop(q.request, now, out);
    return;
  }
  become(e, phase::open);
  e.choices.resize(m->spec.sampling.n);
  news_.emplace_back(news::attached{q.ticket, q.request, *m});
  arm(out);
}

result<void> stream_gateway_core::on(const proto::control_moved&, instant now, outbox& out) {
  reached("gateway.hears_of_control");
  heard_ = false;
  announce_wait_ = options_.resend_after;
  announce(out);
  auto asked = std::exchange(questions_, {});
  for (auto& [tag, q] : asked) {
    const std::uint64_t again = ask(q, now, out);
    if (q.what == kind::attach || q.what == kind::follow)
      entries_.at(q.request).question = again;
  }
  for (auto& [id, e] : entries_)
    resend(id, e, true, now, out);
  return {};
}

void stream_gateway_core::resend(request_id id, entry& e, bool at_once, instant now, outbox& out) {
  const bool due = at_once || now - e.sent >= options_.resend_after;
  switch (e.state) {
  case phase::submitted:
    if (due) {
      reached("gateway.submits_again");
      send_open(e, now, out);
    }
    break;
  case phase::cancelling:
    if (due)
      send_cancel(id, e, now, out);
    break;
  case phase::open:
    if (at_once || now - e.heard >= options_.quiet_after)
      follow_again(id, e, now, out);
    if (e.stopping && due) {
      e.sent = now;
      out.send(options_.journal, proto::cancel_request{id});
    }
    for (const choice& c : e.choices)
      if (c.ending && due) {
        e.sent = now;
        out.send(options_.journal, *c.ending);
      }
    break;
  case phase::waiting:
  case phase::attaching:
    break;
  }
}

result<void> stream_gateway_core::on_due(timer which, instant now, outbox& out) {
  if (which.kind == announce_due && !heard_)
    announce(out);
  if (which.kind == deadline_due) {
    const request_id id{which.key};
    entry* e = find(id);
    if (!e || e->state == phase::cancelling)
      return {};
    out.count("di_gateway_deadlines_passed_total");
    ++counts_.failed;
    if (e->state == phase::attaching)
      refuse(questions_.at(e->question), {ec::deadline_exceeded, "its deadline has passed"});
    else if (!e->left)
      news_.emplace_back(news::ended{id, deadline_end(e->order.spec), 0});
    withdraw(id, *e, now, out);
  }
  if (which.kind != resend_due)
    return {};
  armed_ = false;
  for (auto& [id, e] : entries_)
    resend(id, e, false, now, out);
  for (auto& [tag, q] : questions_)
    if (!q.out)
      ask_now(tag, q, now, out);
  if (!entries_.empty() || !questions_.empty())
    arm(out);
  return {};
}

void stream_gateway_core::arm(outbox& out) {
  if (!std::exchange(armed_, true))
    out.arm({resend_due, 0}, options_.resend_after);
}

} // namespace di::engine
