// SPDX-License-Identifier: Apache-2.0
// Events of a world in which work takes time.
#include "chaos/cost_world.hpp"

#include <cmath>

namespace di::chaos {

std::size_t cost_world::add_host(std::uint32_t cores) {
  hosts_.emplace_back().cores = cores;
  return hosts_.size() - 1;
}

void cost_world::add(std::size_t host, const std::string& process_name, const address& path,
                     std::unique_ptr<core_handle> core) {
  auto made = std::make_unique<actor>();
  made->path = path;
  made->of = &processes_[process_name];
  made->host = host;
  made->core = std::move(core);
  actor& a = *made;
  actors_[path] = std::move(made);
  outbox out;
  if (const auto started = a.core->start(now_, out); !started)
    failure_ = path + ": " + started.error().render();
  settle(a, out.take());
}

void cost_world::inject(const address& to, parcel body) {
  const auto at = actors_.find(to);
  if (at == actors_.end())
    return;
  auto what = std::make_shared<job>();
  what->body = std::move(body);
  what->from = "/outside";
  schedule(0, *at->second, std::move(what));
}

double cost_world::busy_share(std::size_t host) const noexcept {
  const auto& h = hosts_[host];
  return h.busy_us / (static_cast<double>(now_.ns) / 1e3 * h.cores);
}

bool cost_world::run(const std::function<bool()>& done, std::uint64_t mails_max) {
  const std::uint64_t end = handled_ + mails_max;
  while (!events_.empty() && failure_.empty() && handled_ < end) {
    const event next = events_.top();
    events_.pop();
    now_ = instant{next.at_ns};
    if (!next.finished) {
      arrive(*next.to, std::move(*next.what));
      continue;
    }
    finish(*next.to);
    if (done())
      return true;
  }
  return failure_.empty() && done();
}

void cost_world::schedule(double after_us, actor& to, std::shared_ptr<job> what) {
  event e;
  e.at_ns = now_.ns + std::llround(after_us * 1e3);
  e.order = ++order_;
  e.to = &to;
  e.finished = what == nullptr;
  e.what = std::move(what);
  events_.push(std::move(e));
}

void cost_world::arrive(actor& a, job what) {
  if (what.body.empty()) { // a timer: replaced or disarmed ones are gone
    const auto at = a.timers.find(what.which);
    if (at == a.timers.end() || at->second != what.generation)
      return;
    a.timers.erase(at);
  }
  what.wakes = what.remote && a.of->ready == 0;
  a.inbox.push_back(std::move(what));
  if (a.ready)
    return;
  a.ready = true;
  ++a.of->ready;
  machine& h = hosts_[a.host];
  h.ready.push_back(&a);
  dispatch(h);
}

void cost_world::dispatch(machine& h) {
  while (h.busy < h.cores && !h.ready.empty()) {
    actor& a = *h.ready.front();
    h.ready.pop_front();
    begin(h, a);
  }
}

void cost_world::begin(machine& h, actor& a) {
  const job what = std::move(a.inbox.front());
  a.inbox.pop_front();
  ++handled_;
  outbox out;
  result<void> outcome;
  if (what.body.empty()) {
    outcome = a.core->on_due(what.which, now_, out);
  } else {
    envelope mail;
    mail.to = a.path;
    mail.from = what.from;
    mail.body = what.body;
    outcome = a.core->on(mail, now_, out);
  }
  if (!outcome)
    failure_ = a.path + ": " + outcome.error().render();
  a.leaving = out.take();
  const double us = meter_.take() + (what.remote ? costs_.mail_us : costs_.local_us)
                    + (what.wakes ? costs_.wake_us : 0.0);
  ++h.busy;
  h.busy_us += us;
  schedule(us, a, nullptr);
}

void cost_world::finish(actor& a) {
  settle(a, std::exchange(a.leaving, {}));
  machine& h = hosts_[a.host];
  --h.busy;
  a.ready = !a.inbox.empty();
  if (a.ready)
    h.ready.push_back(&a);
  else
    --a.of->ready;
  dispatch(h);
}

void cost_world::settle(actor& a, std::vector<any_effect> effects) {
  for (any_effect& effect : effects) {
    if (auto* send = std::get_if<effect::send>(&effect)) {
      const auto at = actors_.find(send->to);
      if (at == actors_.end())
        continue;
      auto what = std::make_shared<job>();
      what->body = std::move(send->body);
      what->from = a.path;
      what->remote = at->second->of != a.of;
      mails_ += what->remote;
      const double after_us = what->remote ? costs_.latency_us : 0.0;
      schedule(after_us, *at->second, std::move(what));
    } else if (auto* arm = std::get_if<effect::arm>(&effect)) {
      auto what = std::make_shared<job>();
      what->which = arm->which;
      what->generation = a.timers[arm->which] = ++generation_;
      schedule(static_cast<double>(arm->after.count()) / 1e3, a, std::move(what));
    } else if (auto* disarm = std::get_if<effect::disarm>(&effect)) {
      a.timers.erase(disarm->which);
    } else if (auto* fail = std::get_if<effect::fail>(&effect)) {
      failure_ = a.path + ": " + fail->err.render();
    }
  }
}

} // namespace di::chaos
