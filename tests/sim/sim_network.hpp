// SPDX-License-Identifier: Apache-2.0
// Cores on one thread with a virtual clock and a lossy network: one seed replays a run.
#pragma once

#include "actors/core_handle.hpp"
#include "messaging/proto/bus.hpp"

#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

namespace di::test {

/// What the network does to messages between processes. Within a process they arrive in order.
struct network_habits {
  double loss = 0, repeat = 0;   ///< probabilities
  std::int64_t delay_us_max = 1; ///< [us] uniform; more than one message's gap reorders
};

class sim_network {
public:
  sim_network(std::uint64_t seed, network_habits habits) : random_{seed}, habits_{habits} {}

  std::mt19937_64& random() { return random_; }
  instant now() const { return now_; }
  /// Before anything else: shells that read the real clock too find it near.
  void begin_at(instant now) { now_ = now; }
  const std::string& failure() const { return failure_; }
  std::uint64_t lost() const { return lost_; }
  std::uint64_t repeated() const { return repeated_; }

  void add(const address& path, std::unique_ptr<core_handle> core) {
    outbox out;
    settle(path, core->start(now_, out), out);
    actors_[path] = std::move(core);
  }

  /// The actor is no more; mail to it is lost, questions to it bounce.
  void remove(const address& path) {
    actors_.erase(path);
    std::erase_if(timers_, [&path](const auto& t) { return t.first.first == path; });
    std::erase_if(questions_, [&path](const auto& q) { return q.second.first == path; });
  }
  bool has(const address& path) const { return actors_.contains(path); }
  /// Hands an effect-making call to an actor that is not mail.
  template <class F>
  void act(const address& path, F&& f) {
    outbox out;
    f(now_, out);
    settle(path, {}, out);
  }
  /// May change any mail between processes, or take it away (empty).
  std::function<void(const address& to, parcel& body)> tamper;

  /// Sends from outside, certainly.
  void inject(const address& to, parcel body, duration after = {}) {
    deliver_at(now_ + after, "/outside", to, std::move(body));
  }

  /// Runs until `done`, a failure, or a bound. @return whether it was done
  bool run(const std::function<bool()>& done, std::size_t events_max, duration limit) {
    const instant end = now_ + limit;
    for (std::size_t n = 0; n < events_max && failure_.empty(); ++n) {
      if (done())
        return true;
      if (events_.empty() || events_.top().at > end)
        return false;
      event next = events_.top();
      events_.pop();
      now_ = next.at;
      handle(next);
    }
    return failure_.empty() && done();
  }

private:
  struct event {
    instant at;
    std::uint64_t order = 0;
    address from, to;
    parcel body; ///< empty: a timer
    timer which;
    std::uint64_t generation = 0;
    mail_kind kind = mail_kind::tell;
    std::uint64_t request = 0;
    bool operator<(const event& o) const { return at != o.at ? at > o.at : order > o.order; }
  };

  static std::string process_of(const address& path) {
    if (path.starts_with("/control"))
      return "/control";
    return path.substr(0, path.find('/', path.find('/', 1) + 1)); // "/rank/3", "/gateway/0"
  }

  void deliver_at(instant at, const address& from, const address& to, parcel body,
                  mail_kind kind = mail_kind::tell, std::uint64_t request = 0) {
    event e;
    e.kind = kind;
    e.request = request;
    e.at = at;
    e.order = ++order_;
    e.from = from;
    e.to = to;
    e.body = std::move(body);
    events_.push(std::move(e));
  }

  bool chance(double p) { return std::uniform_real_distribution<double>{}(random_) < p; }

  void post(const address& from, const address& to, parcel body, mail_kind kind = mail_kind::tell,
            std::uint64_t request = 0) {
    if (process_of(from) == process_of(to))
      return deliver_at(now_, from, to, body, kind, request);
    if (tamper)
      tamper(to, body);
    if (body.empty() || chance(habits_.loss)) {
      ++lost_;
      return;
    }
    const int copies = chance(habits_.repeat) ? 2 : 1;
    repeated_ += copies == 2;
    for (int i = 0; i < copies; ++i) {
      auto delay = std::uniform_int_distribution<std::int64_t>{1, habits_.delay_us_max};
      deliver_at(now_ + std::chrono::microseconds{delay(random_)}, from, to, body, kind, request);
    }
  }

  void ask(const address& self, const effect::request& q) {
    const std::uint64_t id = ++question_;
    questions_[id] = {self, q.tag};
    deliver_at(now_ + q.timeout, q.to, self,
               parcel::of(proto::request_failed{ec::deadline_exceeded, "no answer"}),
               mail_kind::failure, id);
    post(self, q.to, q.body, mail_kind::request, id);
  }

  result<void> answered(const event& e, core_handle& core, outbox& out) {
    const auto at = questions_.find(e.request);
    if (at == questions_.end() || at->second.first != e.to)
      return {}; // answered before, or too late
    const std::uint64_t tag = at->second.second;
    questions_.erase(at);
    if (e.kind == mail_kind::reply)
      return core.on_answer(tag, e.body, now_, out);
    const auto* why = e.body.as<proto::request_failed>();
    return core.on_answer(tag, fail(error{why->code, why->what}), now_, out);
  }

  void handle(const event& e) {
    const auto at = actors_.find(e.to);
    if (at == actors_.end()) {
      if (e.kind == mail_kind::request)
        post(e.to, e.from, parcel::of(proto::request_failed{ec::not_found, e.to + " is not here"}),
             mail_kind::failure, e.request);
      return;
    }
    outbox out;
    result<void> outcome;
    if (e.body.empty()) {
      auto& generation = timers_[{e.to, e.which}];
      if (generation != e.generation)
        return; // replaced or disarmed
      generation = 0;
      outcome = at->second->on_due(e.which, now_, out);
    } else if (e.kind == mail_kind::reply || e.kind == mail_kind::failure) {
      outcome = answered(e, *at->second, out);
    } else {
      envelope mail;
      mail.kind = e.kind;
      mail.request = e.request;
      mail.to = e.to;
      mail.from = e.from;
      mail.body = e.body;
      outcome = at->second->on(mail, now_, out);
    }
    at->second->check();
    settle(e.to, outcome, out);
  }

  void settle(const address& self, const result<void>& outcome, outbox& out) {
    if (!outcome)
      failure_ = self + ": " + outcome.error().render();
    for (any_effect& effect : out.take()) {
      if (auto* send = std::get_if<effect::send>(&effect)) {
        post(self, send->to, send->body);
      } else if (auto* request = std::get_if<effect::request>(&effect)) {
        ask(self, *request);
      } else if (auto* reply = std::get_if<effect::reply>(&effect)) {
        post(self, reply->ticket.to, reply->body, mail_kind::reply, reply->ticket.request);
      } else if (auto* refuse = std::get_if<effect::refuse>(&effect)) {
        post(self, refuse->ticket.to,
             parcel::of(proto::request_failed{refuse->err.code, refuse->err.what}),
             mail_kind::failure, refuse->ticket.request);
      } else if (auto* arm = std::get_if<effect::arm>(&effect)) {
        event e;
        e.at = now_ + arm->after;
        e.order = ++order_;
        e.to = self;
        e.which = arm->which;
        e.generation = timers_[{self, arm->which}] = ++generation_;
        events_.push(std::move(e));
      } else if (auto* disarm = std::get_if<effect::disarm>(&effect)) {
        timers_[{self, disarm->which}] = 0;
      } else if (auto* fail = std::get_if<effect::fail>(&effect)) {
        failure_ = self + ": " + fail->err.render();
      }
    }
  }

  std::mt19937_64 random_;
  network_habits habits_;
  instant now_{1};
  std::priority_queue<event> events_;
  std::map<address, std::unique_ptr<core_handle>> actors_;
  std::map<std::pair<address, timer>, std::uint64_t> timers_;
  std::map<std::uint64_t, std::pair<address, std::uint64_t>> questions_; ///< who asked, tag
  std::uint64_t question_ = 0;
  std::uint64_t order_ = 0, generation_ = 0, lost_ = 0, repeated_ = 0;
  std::string failure_;
};

} // namespace di::test
