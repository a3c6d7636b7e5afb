// SPDX-License-Identifier: Apache-2.0
// What KEEPER does to one rank: start, admit, drain, fence, and the budget of its restarts.
#include "engine/core/keeper_core.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::engine {

/// The last view of an earlier control process had a life that was not there when this one began.
/// It may be gone, or hang: a start will tell.
void keeper_core::lost_unheard(kept& k, incarnation life, const std::string& reason, instant now,
                               outbox& out) {
  k.last_reason = reason;
  if (k.state == kept_state::waiting || k.state == kept_state::starting) {
    k.unheard = life;
    return;
  }
  k.life = life; // nobody starts it: it is ended like one that was known
  fence(k, reason, now, out);
}

void keeper_core::exited(kept& k, const std::string& words, instant now, outbox& out) {
  const bool ordered = k.state == kept_state::leaving;
  const bool excused = ordered || k.blameless;
  if (!excused) {
    // Of a hang the end of the process says less than what it was fenced for.
    const bool hung = k.state == kept_state::fenced && k.last_reason.starts_with("stuck");
    const auto how = words.empty() ? std::string{"it ended"} : words;
    k.last_reason = hung ? fmt::format("{}; {}", k.last_reason, how) : how;
  }
  if (!excused)
    last_reason_ = fmt::format("rank {}: {}", k.home.rank.v, k.last_reason);
  const bool was_member = k.state == kept_state::member;
  const bool returns = k.returns;
  k.over = std::exchange(k.life, incarnation{});
  k.asked = 0;
  k.returns = k.ending = k.blameless = false;
  if (!excused)
    ++k.deaths;
  if (was_member && options_.loss == on_loss::restart_smaller) {
    reached("keeper.fences");
    k.state = kept_state::fenced;
    regroup(now, out);
  }
  if (ordered && !returns) {
    k.state = kept_state::absent;
    return;
  }
  if (excused)
    return rest(k, now, out);
  strike(k, now, out);
}

/// A start after a failure: it costs a token.
void keeper_core::strike(kept& k, instant now, outbox& out) {
  out.count("di_keeper_strikes_total");
  k.asked = 0;
  if (!k.wanted || !comes_back(k)) {
    k.state = kept_state::absent;
  } else if (spend(k, now)) {
    return rest(k, now + hold_off(k, now), out);
  } else {
    k.state = kept_state::quarantined;
    const auto price = options_.restart_window / std::max(1U, options_.restarts_max);
    k.due = now + std::max(options_.quarantine, price - k.credit);
    out.count("di_keeper_quarantines_total");
  }
  k.again = options_.loss == on_loss::shrink ? now + options_.resend_after : now;
}

/// A life that is over and whose rank does not come back: the group shall not wait for it.
void keeper_core::dismiss(kept& k, instant now, outbox& out) {
  const auto* m = of_rank(k.home.rank);
  if (!m || k.again > now || regrouping_)
    return;
  k.again = now + options_.resend_after;
  out.send(options_.membership, proto::dismiss_member{m->rank, m->life, k.last_reason});
}

void keeper_core::rest(kept& k, instant due, outbox& /*out*/) {
  k.state = kept_state::waiting;
  k.due = due;
}

void keeper_core::fence(kept& k, std::string reason, instant now, outbox& out) {
  k.state = kept_state::fenced;
  k.asked = 0;
  k.last_reason = reason;
  k.again = now + options_.resend_after;
  k.due = {};
  kill(k, false, reason, out);
}

void keeper_core::kill(const kept& k, bool politely, const std::string& reason, outbox& out) const {
  if (planted("no_fence"))
    return;
  out.count("di_keeper_kills_total");
  out.send(fmt::format("/node/{}", k.home.node.v),
           proto::kill_rank{k.home.rank, k.life, politely, reason});
}

void keeper_core::start(kept& k, instant now, outbox& out) {
  k.state = kept_state::starting;
  k.life = {};
  k.due = now + options_.join_timeout;
  k.asked = ++last_tag_;
  ++k.starts;
  questions_[k.asked] = k.home.rank;
  out.count("di_keeper_starts_total");
  out.request(fmt::format("/node/{}", k.home.node.v), proto::start_rank{k.home.rank}, k.asked,
              options_.start_timeout);
}

void keeper_core::start_answered(kept& k, const result<parcel>& answer, instant now, outbox& out) {
  if (const auto* started = answer ? answer->as<proto::rank_started>() : nullptr) {
    k.life = started->life;
    k.unheard = {};
    k.state = kept_state::proving;
    return;
  }
  const auto why = answer ? error{ec::internal, "an unknown answer"} : answer.error();
  k.last_reason = fmt::format("node {} did not start it: {}", k.home.node.v, why.render());
  last_reason_ = fmt::format("rank {}: {}", k.home.rank.v, k.last_reason);
  if (why.code == ec::duplicate && k.unheard.v != 0) {
    reached("keeper.ends_unheard_life");
    k.life = std::exchange(k.unheard, incarnation{});
    return fence(k, "the group had lost it before control started again", now, out);
  }
  if (why.code == ec::duplicate) // its last process is not reaped yet
    return rest(k, now + hold_off(k, now), out);
  strike(k, now, out);
}

void keeper_core::admit(kept& k, instant now, outbox& out) {
  k.again = now + options_.resend_after;
  out.send(options_.membership, proto::admit_member{k.ready});
}

void keeper_core::drain(kept& k, bool returns, instant now, outbox& out) {
  k.state = kept_state::draining;
  k.returns = returns;
  k.due = now + options_.drain_timeout;
  k.again = now; // further_out() tells the rank, and again with each question
  out.count("di_keeper_drains_total");
}

/// It has nothing left to do, or its time is over: MEMBERSHIP goes on without it.
void keeper_core::leave(kept& k, instant now, outbox& out) {
  k.state = kept_state::leaving;
  k.last_reason = "as ordered";
  k.ending = false;
  k.asked = 0;
  if (!member(k))
    return end_process(k, now, out);
  k.again = now + options_.resend_after;
  out.send(options_.membership, proto::dismiss_member{k.home.rank, k.life, "as ordered"});
}

void keeper_core::end_process(kept& k, instant now, outbox& out) {
  k.ending = true;
  k.due = now + options_.end_timeout;
  k.again = k.due;
  kill(k, true, "as ordered", out);
}

bool keeper_core::spend(kept& k, instant now) {
  if (options_.restarts_max == 0)
    return false;
  k.credit = std::min(options_.restart_window, k.credit + (now - k.credit_at));
  k.credit_at = now;
  const auto price = options_.restart_window / options_.restarts_max;
  if (k.credit < price)
    return false;
  k.credit -= price;
  return true;
}

duration keeper_core::hold_off(kept& k, instant now) {
  if (k.member_since != instant{} && now - k.member_since >= options_.restart_window)
    k.deaths_in_row = 0;
  const auto row = k.deaths_in_row++;
  if (row == 0 && options_.loss != on_loss::shrink)
    return {}; // requests wait for it
  auto wait = options_.backoff_first;
  for (std::uint32_t i = 0; i < row && wait < options_.backoff_max; ++i)
    wait = std::min(options_.backoff_max, wait * 2);
  const auto jitter_max = static_cast<std::uint64_t>(wait.count()) / 4;
  if (jitter_max > 0)
    wait += duration{static_cast<std::int64_t>(random() % jitter_max)};
  return wait;
}

std::uint64_t keeper_core::random() { // splitmix64
  options_.seed += 0x9E3779B97F4A7C15U;
  std::uint64_t z = options_.seed;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

} // namespace di::engine
