// SPDX-License-Identifier: Apache-2.0
// Carrying out of effects, matching of answers to requests, deadlines.
#include "actors/core_driver.hpp"

#include "messaging/proto/bus.hpp"

#include <algorithm>

namespace di::actors {
namespace {

template <class... Fs>
struct overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
overloaded(Fs...) -> overloaded<Fs...>;

} // namespace

core_driver::core_driver(driver_options options, std::unique_ptr<core_handle> core)
    : options_{std::move(options)}, core_{std::move(core)} {
  DI_CHECK(options_.office != nullptr);
  DI_CHECK(core_ != nullptr);
}

result<void> core_driver::start(instant now) {
  const trace::on_track here{own_track()};
  const progress_mark at{options_.progress, phase_start};
  outbox out;
  return finish(core_->start(now, out), out, now);
}

result<void> core_driver::on(const envelope& mail, instant now) {
  const trace::on_track here{own_track()};
  const progress_mark at{options_.progress, std::uint32_t{mail.body.id().v}};
  if (options_.trace)
    options_.trace(options_.self, true, mail);
  count("di_shell_mails_total");
  if (mail.kind == mail_kind::reply || mail.kind == mail_kind::failure)
    return on_answer(mail, now);
  outbox out;
  return finish(core_->on(mail, now, out), out, now);
}

result<void> core_driver::on_wake(instant now) {
  const trace::on_track here{own_track()};
  const progress_mark at{options_.progress, phase_timer};
  while (!deadlines_.empty() && deadlines_.begin()->first <= now)
    DI_TRY_VOID(expire(deadlines_.begin()->second, now));
  // Timers armed by these handlers for this very instant wait for the next wake: no endless loop.
  for (std::size_t left = timers_.size(); left > 0; --left) {
    const auto due = timers_.take_due(now);
    if (!due)
      break;
    outbox out;
    DI_TRY_VOID(finish(core_->on_due(*due, now, out), out, now));
  }
  return {};
}

std::optional<instant> core_driver::next_wake() const {
  auto next = timers_.next();
  if (!deadlines_.empty() && (!next || deadlines_.begin()->first < *next))
    next = deadlines_.begin()->first;
  return next;
}

result<void> core_driver::finish(result<void> outcome, outbox& out, instant now) {
  if (!outcome)
    return outcome;
  if (options_.checked)
    core_->check();
  std::optional<error> ended;
  for (auto& effect : out.take())
    carry_out(effect, now, ended);
  if (ended)
    return fail(std::move(*ended));
  return {};
}

void core_driver::carry_out(any_effect& effect, instant now, std::optional<error>& ended) {
  const auto answer = [&](const reply_to& ticket, mail_kind kind, parcel body) {
    if (ticket.request == 0)
      return;
    envelope mail;
    mail.to = ticket.to;
    mail.kind = kind;
    mail.request = ticket.request;
    mail.body = std::move(body);
    post(std::move(mail));
  };
  std::visit(overloaded{
                 [&](effect::send& e) {
                   envelope mail;
                   mail.to = std::move(e.to);
                   mail.body = std::move(e.body);
                   post(std::move(mail));
                 },
                 [&](effect::request& e) { open(e, now); },
                 [&](effect::reply& e) { answer(e.ticket, mail_kind::reply, std::move(e.body)); },
                 [&](effect::refuse& e) {
                   answer(e.ticket, mail_kind::failure,
                          parcel::of(proto::request_failed{e.err.code, e.err.what}));
                 },
                 [&](effect::arm& e) { timers_.arm(e.which, now + e.after); },
                 [&](effect::disarm& e) { timers_.disarm(e.which); },
                 [&](effect::fail& e) {
                   if (!ended)
                     ended = std::move(e.err);
                 },
                 [&](effect::count& e) { count(e.metric, e.n); },
             },
             effect);
}

void core_driver::post(envelope mail) {
  mail.from = options_.self;
  if (options_.trace)
    options_.trace(options_.self, false, mail);
  count("di_shell_mails_sent_total");
  if (!options_.office->post(std::move(mail)))
    count("di_shell_undeliverable_total");
}

void core_driver::open(effect::request& r, instant now) {
  const auto number = options_.office->number();
  envelope mail;
  mail.to = r.to;
  mail.from = options_.self;
  mail.kind = mail_kind::request;
  mail.request = number;
  mail.deadline = now + r.timeout;
  mail.body = std::move(r.body);
  if (options_.trace)
    options_.trace(options_.self, false, mail);
  count("di_shell_mails_sent_total");
  const auto sent = options_.office->post(std::move(mail));
  open_request entry{r.tag, std::move(r.to), {}, std::nullopt};
  if (!sent)
    entry.lost = sent.error();
  entry.due = deadlines_.emplace(sent ? now + r.timeout : now, number);
  requests_.emplace(number, std::move(entry));
}

result<void> core_driver::on_answer(const envelope& mail, instant now) {
  const auto found = requests_.find(mail.request);
  if (found == requests_.end()) {
    count("di_shell_stale_answers_total"); // after its deadline, or meant for an earlier life
    return {};
  }
  const auto tag = found->second.tag;
  deadlines_.erase(found->second.due);
  requests_.erase(found);
  outbox out;
  if (mail.kind == mail_kind::reply)
    return finish(core_->on_answer(tag, mail.body, now, out), out, now);
  error why{ec::internal, "failure without a reason"};
  if (const auto* m = mail.body.as<proto::request_failed>())
    why = {m->code, m->what};
  return finish(core_->on_answer(tag, fail(std::move(why)), now, out), out, now);
}

result<void> core_driver::expire(std::uint64_t number, instant now) {
  deadlines_.erase(deadlines_.begin());
  auto found = requests_.find(number);
  DI_CHECK(found != requests_.end());
  open_request entry = std::move(found->second);
  requests_.erase(found);
  error why = entry.lost ? std::move(*entry.lost)
                         : error{ec::deadline_exceeded, "no answer from " + entry.to};
  outbox out;
  return finish(core_->on_answer(entry.tag, fail(std::move(why)), now, out), out, now);
}

/// Spans of this actor's handlers stand on a track of its own.
trace::track_id core_driver::own_track() {
  if (track_ == 0 && trace::enabled())
    track_ = trace::track(options_.self);
  return track_;
}

void core_driver::count(std::string_view metric, double n) {
  if (options_.counters)
    options_.counters->add(metric, n);
}

} // namespace di::actors
