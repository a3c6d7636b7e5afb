// SPDX-License-Identifier: Apache-2.0
#include "chaos/triggers.hpp"

#include <algorithm>

namespace di::chaos {

triggers::triggers(const plan& p, launch::poll_loop& loop, strike what)
    : plan_{p}, loop_{loop}, strike_{std::move(what)}, states_(p.faults.size()) {
}

std::size_t triggers::waiting() const noexcept {
  std::size_t waiting = 0;
  for (std::size_t i = 0; i < states_.size(); ++i)
    waiting += states_[i].struck < plan_.faults[i].times ? 1 : 0;
  return waiting;
}

bool triggers::comes(const fault& f, const log_event& e) const {
  const fault_trigger& t = f.trigger;
  switch (t.kind) {
  case trigger_kind::at:
    return false; // by time, from batch_began on
  case trigger_kind::tokens:
    return e.name == "batch_progress" && progress_tokens(e).value_or(0) > t.count;
  case trigger_kind::finished:
    return e.name == "batch_progress" && progress_finished(e).value_or(0) > t.count;
  case trigger_kind::view:
    return e.name == "view_committed"
           && e.number("view").value_or(0) >= static_cast<std::int64_t>(t.count);
  case trigger_kind::event:
    return e.name == t.event;
  case trigger_kind::whole:
    return false; // see_whole()
  case trigger_kind::in_step:
    return e.name == "batch_progress" && progress_tokens(e).value_or(0) > 0;
  }
  return false;
}

void triggers::see(const log_event& e) {
  if (e.name == "batch_began" && !began_) {
    began_ = true;
    for (std::size_t i = 0; i < states_.size(); ++i)
      if (plan_.faults[i].trigger.kind == trigger_kind::at) {
        states_[i].fired = true;
        strike_later(i, plan_.faults[i].trigger.at + plan_.faults[i].after, plan_.faults[i].times);
      }
  }
  if (e.name == "view_committed")
    members_max_ = std::max(members_max_, e.number("members").value_or(0));
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (plan_.faults[i].trigger.kind == trigger_kind::whole)
      see_whole(i, e);
    // Events count for a fault once the fault before it has struck.
    if (states_[i].fired || !comes(plan_.faults[i], e)
        || (plan_.faults[i].trigger.kind == trigger_kind::event && i > 0
            && states_[i - 1].struck == 0))
      continue;
    fire(i);
  }
}

void triggers::see_whole(std::size_t number, const log_event& e) {
  state& s = states_[number];
  const fault& f = plan_.faults[number];
  const bool whole = e.name == "view_committed" && e.number("members").value_or(0) == members_max_;
  const bool begins = e.name == "batch_began" && !s.fired;
  if (!whole && !begins)
    return;
  if (!s.fired) {
    if (!begins) // the first view: nobody works yet
      return;
    s.fired = true;
    s.left = f.times;
  }
  if (s.left == 0)
    return;
  --s.left;
  strike_later(number, f.after, 1);
}

void triggers::fire(std::size_t number) {
  const fault& f = plan_.faults[number];
  states_[number].fired = true;
  if (f.after == nanoseconds{} && f.times == 1) { // at once, not a turn of the loop later
    if (stopped_)
      return;
    ++states_[number].struck;
    strike_(number, f.trigger.kind == trigger_kind::in_step);
    return;
  }
  strike_later(number, f.after, f.times);
}

void triggers::strike_later(std::size_t number, nanoseconds in, std::uint32_t left) {
  loop_.at(launch::poll_loop::clock::now() + in, [this, number, left] {
    if (stopped_)
      return;
    const fault& f = plan_.faults[number];
    ++states_[number].struck;
    strike_(number, f.trigger.kind == trigger_kind::in_step);
    if (left > 1)
      strike_later(number, f.every, left - 1);
  });
}

} // namespace di::chaos
