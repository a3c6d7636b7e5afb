// SPDX-License-Identifier: Apache-2.0
// Events in the order of their times.
#include "chaos/sim_world.hpp"

#include "messaging/proto/expert_shard.hpp"

#include <algorithm>

namespace di::sim {

namespace {

/// As messaging/wire says: messages with rows of their own travel apart from the small ones.
bool is_bulk(const envelope& mail) {
  return mail.body.id() == proto::expert_batch::wire || mail.body.id() == proto::expert_rows::wire;
}

std::uint64_t hash_of(const std::string& s) {
  std::uint64_t h = 0xcbf2'9ce4'8422'2325U;
  for (const char c : s)
    h = (h ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3U;
  return h;
}

} // namespace

sim_world::sim_world(world_options options)
    : options_{options},
      random_{sim_random{options.seed}.fork(1)},
      network_{sim_random{options.seed}.fork(2), options.delay_min, options.delay_max} {
}

sim_world::~sim_world() = default;

void sim_world::fail_run(std::string words) {
  if (failure_.empty())
    failure_ = std::move(words);
}

void sim_world::mix(std::uint64_t v) noexcept {
  hash_ = (hash_ ^ v) * 0x9E37'79B9'7F4A'7C15U;
  hash_ ^= hash_ >> 29U;
}

void sim_world::at(instant when, std::function<void()> what) {
  std::size_t place = bodies_.size();
  if (free_.empty()) {
    bodies_.push_back(std::move(what));
  } else {
    place = free_.back();
    free_.pop_back();
    bodies_[place] = std::move(what);
  }
  queue_.push({std::max(when, now_), ++order_, place});
}

// --- processes

sim_process& sim_world::add_process(address prefix, incarnation life) {
  auto made = std::make_unique<sim_process>();
  made->prefix = prefix;
  made->life = life;
  made->office = std::make_unique<sim_office>(prefix, life, *this);
  newest_[prefix] = life;
  const auto [at, fresh] = processes_.emplace(life, std::move(made));
  DI_CHECK(fresh);
  note(*at->second, "begins a life");
  return *at->second;
}

void sim_world::note(const sim_process& p, const std::string& words) {
  for (sim_observer* o : observers_)
    o->on_note(p, words);
}

sim_process* sim_world::find(incarnation life) {
  const auto at = processes_.find(life);
  return at == processes_.end() ? nullptr : at->second.get();
}

sim_process* sim_world::living(const address& prefix) {
  const auto at = newest_.find(prefix);
  sim_process* p = at == newest_.end() ? nullptr : find(at->second);
  return p && p->state != process_state::dead ? p : nullptr;
}

void sim_world::spawn(sim_process& p, const address& path, std::unique_ptr<core_handle> core) {
  actors::driver_options o;
  o.self = path;
  o.office = p.office.get();
  o.checked = options_.checked;
  o.trace = [this, &p](const address& self, bool incoming, const envelope& mail) {
    if (!incoming)
      tell(mail_event::sent, p, self, mail);
  };
  (void)p.office->bind(path, {});
  sim_actor& a = p.actors[path];
  a.driver = std::make_unique<actors::core_driver>(std::move(o), std::move(core));
  after_call(p, path, a.driver->start(now_));
}

void sim_world::kill(incarnation life, duration eof_after) {
  sim_process* p = find(life);
  if (!p || p->state == process_state::dead)
    return;
  mix(life.v);
  note(*p, "dies");
  p->state = process_state::dead;
  p->reuses = random_.chance(options_.reused_endpoints);
  p->held.clear();
  p->actors.clear(); // @pre none of them is on the stack
  for (auto& [other, peer] : processes_)
    if (peer->state != process_state::dead)
      after(random_.span(std::chrono::microseconds{50}, eof_after), [this, life, other = other] {
        if (sim_process* q = find(other); q && q->state != process_state::dead)
          q->office->lost(life, {ec::peer_lost, "the connection broke"});
      });
}

void sim_world::stop(incarnation life) {
  sim_process* p = find(life);
  if (!p || p->state != process_state::running)
    return;
  note(*p, "is stopped");
  p->state = process_state::stopped;
}

void sim_world::resume(incarnation life) {
  sim_process* p = find(life);
  if (!p || p->state != process_state::stopped)
    return;
  note(*p, "goes on");
  p->state = process_state::running;
  for (auto& what : std::exchange(p->held, {}))
    at(now_, std::move(what));
}

// --- mail

void sim_world::tell(mail_event what, const sim_process& p, const address& self,
                     const envelope& mail) {
  for (sim_observer* o : observers_)
    o->on_mail(what, p, self, mail);
}

void sim_world::inject(sim_process& p, const address& to, parcel body, duration after_span) {
  envelope mail;
  mail.to = to;
  mail.from = "/outside";
  mail.body = std::move(body);
  after(after_span, [this, life = p.life, mail = std::move(mail)] { hand_over(life, mail); });
}

void sim_world::carry(sim_frame frame) {
  const sim_process* from = find(frame.sender);
  const sim_process* to = find(frame.receiver);
  if (!to)
    return;
  const auto times = network_.arrivals(from->prefix, to->prefix, is_bulk(frame.mail), now_);
  if (times.empty())
    tell(mail_event::dropped, *to, frame.mail.to, frame.mail);
  const double slow = std::max(from->slowness, to->slowness);
  for (const instant t : times) {
    instant arrival = t;
    if (slow > 1)
      arrival =
          now_
          + duration{static_cast<std::int64_t>(static_cast<double>((t - now_).count()) * slow)};
    at(arrival, [this, frame] { arrive(frame); });
  }
}

void sim_world::arrive(const sim_frame& frame) {
  sim_process* p = find(frame.receiver);
  if (p && p->state == process_state::dead) {
    sim_process* next = p->reuses ? living(p->prefix) : nullptr;
    if (!next)
      return tell(mail_event::dropped, *p, frame.mail.to, frame.mail);
    p = next;
  }
  if (!p)
    return;
  if (p->state == process_state::stopped) {
    p->held.push_back([this, frame] { arrive(frame); });
    return;
  }
  p->office->receive(frame);
}

void sim_world::deliver(incarnation process, envelope mail) {
  sim_process* p = find(process);
  const auto actor = p ? p->actors.find(mail.to) : decltype(p->actors.end()){};
  if (!p || actor == p->actors.end())
    return;
  instant t = now_;
  if (mail.sender == incarnation{}) { // from within the process
    t = now_ + random_.span(duration{1}, options_.local_max);
    if (mail.body.id() == proto::work_due::wire) // computing takes time
      t = t + random_.span(std::chrono::microseconds{5}, options_.compute_max);
    if (p->slowness > 1)
      t = now_
          + duration{
              static_cast<std::int64_t>(static_cast<double>((t - now_).count()) * p->slowness)};
  }
  instant& last = actor->second.last_from[mail.from];
  t = last = std::max(t, last);
  at(t, [this, process, mail = std::move(mail)] { hand_over(process, mail); });
}

void sim_world::hand_over(incarnation life, const envelope& mail) {
  sim_process* p = find(life);
  if (!p || p->state == process_state::dead)
    return;
  if (p->state == process_state::stopped) {
    p->held.push_back([this, life, mail] { hand_over(life, mail); });
    return;
  }
  const auto actor = p->actors.find(mail.to);
  if (actor == p->actors.end())
    return;
  mix(static_cast<std::uint64_t>(now_.ns));
  mix(hash_of(mail.to) ^ (std::uint64_t{mail.body.id().v} << 48U));
  mix(hash_of(mail.from));
  tell(mail_event::received, *p, mail.to, mail);
  const result<void> outcome = actor->second.driver->on(mail, now_);
  tell(mail_event::handled, *p, mail.to, mail);
  after_call(*p, mail.to, outcome);
}

void sim_world::wake(incarnation life, const address& path) {
  sim_process* p = find(life);
  if (!p || p->state == process_state::dead)
    return;
  if (p->state == process_state::stopped) {
    p->held.push_back([this, life, path] { wake(life, path); });
    return;
  }
  sim_actor& a = p->actors.at(path);
  a.woken_at = {};
  const auto due = a.driver->next_wake();
  if (!due || *due > now_)
    return schedule_wake(*p, path, a);
  mix(static_cast<std::uint64_t>(now_.ns) ^ hash_of(path));
  after_call(*p, path, a.driver->on_wake(now_));
}

void sim_world::after_call(sim_process& p, const address& path, const result<void>& outcome) {
  if (p.state == process_state::dead)
    return; // killed by an observer
  if (!outcome) {
    const error why = outcome.error();
    if (on_gave_up)
      on_gave_up(p, path, why);
    else
      fail_run(path + ": " + why.render());
    return;
  }
  schedule_wake(p, path, p.actors.at(path));
}

void sim_world::schedule_wake(sim_process& p, const address& path, sim_actor& a) {
  const auto due = a.driver->next_wake();
  if (!due || (a.woken_at != instant{} && a.woken_at <= *due))
    return;
  a.woken_at = std::max(*due, now_);
  at(a.woken_at, [this, life = p.life, path] { wake(life, path); });
}

bool sim_world::run(const std::function<bool()>& done, std::uint64_t events_max, instant until) {
  for (std::uint64_t n = 0; n < events_max && failure_.empty(); ++n) {
    if (done())
      return true;
    if (queue_.empty() || queue_.top().at > until) {
      now_ = std::max(now_, until);
      return false;
    }
    const event next = queue_.top();
    queue_.pop();
    now_ = std::max(now_, next.at);
    const std::function<void()> what = std::move(bodies_[next.what]);
    bodies_[next.what] = nullptr;
    free_.push_back(next.what);
    ++handled_;
    try {
      what();
    } catch (const std::exception& e) { // a broken check() of a core
      fail_run(e.what());
    }
  }
  return failure_.empty() && done();
}

} // namespace di::sim
