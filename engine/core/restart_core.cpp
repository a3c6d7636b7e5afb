// SPDX-License-Identifier: Apache-2.0
// Groups, budgets and waits of restarts.
#include "engine/core/restart_core.hpp"

#include <algorithm>

namespace di::engine {

std::string_view to_string(child_state s) noexcept {
  switch (s) {
  case child_state::running:
    return "running";
  case child_state::stopping:
    return "stopping";
  case child_state::waiting:
    return "waiting";
  case child_state::down:
    return "down";
  }
  return "?";
}

result<restart_strategy> parse_strategy(std::string_view name) {
  if (name == "one_for_one")
    return restart_strategy::one_for_one;
  if (name == "one_for_all")
    return restart_strategy::one_for_all;
  if (name == "rest_for_one")
    return restart_strategy::rest_for_one;
  return fail(ec::bad_config,
              "unknown restart strategy '{}'; known are one_for_one, one_for_all, rest_for_one",
              name);
}

restart_core::restart_core(std::vector<restart_rule> children, std::uint64_t seed)
    : marked_(children.size()), seed_{seed} {
  for (auto& rule : children) {
    entry e;
    e.credit = rule.window;
    e.rule = rule;
    children_.push_back(std::move(e));
  }
}

std::vector<restart_action> restart_core::start(instant now) {
  for (auto& e : children_) {
    e.state = child_state::waiting;
    e.ready = e.credit_at = now;
  }
  return proceed(now);
}

std::vector<restart_action> restart_core::on_down(std::size_t child, std::uint64_t life,
                                                  const error& reason, instant now) {
  if (child >= children_.size() || children_[child].life != life
      || (children_[child].state != child_state::running
          && children_[child].state != child_state::stopping)) {
    ++stale_downs_;
    return {};
  }
  auto& e = children_[child];
  const bool asked = e.state == child_state::stopping;
  e.state = ending_ ? child_state::down : child_state::waiting;
  std::vector<restart_action> out;
  if (!ending_ && !asked) {
    if (spend(e, now))
      plan_group(child, now + backoff(e, now));
    else
      give_up(child, reason);
    stop_marked(out);
  }
  for (auto& action : proceed(now))
    out.push_back(std::move(action));
  return out;
}

std::vector<restart_action> restart_core::on_due(instant now) {
  return proceed(now);
}

std::optional<instant> restart_core::next_due() const {
  std::optional<instant> next;
  if (anyone(child_state::stopping))
    return next;
  for (const auto& e : children_)
    if (e.state == child_state::waiting && (!next || e.ready < *next))
      next = e.ready;
  return next;
}

std::vector<restart_action> restart_core::stop() {
  end_all();
  std::vector<restart_action> out;
  stop_marked(out);
  return out;
}

bool restart_core::all_down() const noexcept {
  return std::all_of(children_.begin(), children_.end(),
                     [](const entry& e) { return e.state == child_state::down; });
}

// --- decisions --------------------------------------------------------------------------------

bool restart_core::spend(entry& e, instant now) {
  const auto& rule = e.rule;
  if (rule.restarts_max == 0)
    return false;
  if (rule.budget == restart_budget::bucket) {
    e.credit = std::min(rule.window, e.credit + (now - e.credit_at));
    e.credit_at = now;
    const auto price = rule.window / rule.restarts_max;
    if (e.credit < price)
      return false;
    e.credit -= price;
    return true;
  }
  while (!e.recent.empty() && now - e.recent.front() >= rule.window)
    e.recent.pop_front();
  if (e.recent.size() >= rule.restarts_max)
    return false;
  e.recent.push_back(now);
  return true;
}

duration restart_core::backoff(entry& e, instant now) {
  const auto& rule = e.rule;
  if (now - e.started >= rule.window)
    e.deaths_in_row = 0;
  auto wait = rule.backoff_first;
  for (std::uint32_t i = 0; i < e.deaths_in_row && wait < rule.backoff_max; ++i)
    wait = std::min(rule.backoff_max, wait * 2);
  ++e.deaths_in_row;
  const auto jitter_max = static_cast<std::uint64_t>(wait.count()) / 4;
  if (jitter_max > 0)
    wait += duration{static_cast<std::int64_t>(random() % jitter_max)};
  return wait;
}

void restart_core::give_up(std::size_t child, const error& reason) {
  const auto& rule = children_[child].rule;
  gave_up_ =
      error{ec::gave_up,
            fmt::format("no restart left of {} in {} ms; last reason: {}", rule.restarts_max,
                        std::chrono::duration_cast<std::chrono::milliseconds>(rule.window).count(),
                        reason.render())};
  culprit_ = child;
  end_all();
}

void restart_core::end_all() {
  ending_ = true;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    marked_[i] = children_[i].state == child_state::running;
    if (children_[i].state == child_state::waiting)
      children_[i].state = child_state::down;
  }
}

void restart_core::plan_group(std::size_t child, instant ready) {
  const auto strategy = children_[child].rule.strategy;
  const bool all = strategy == restart_strategy::one_for_all;
  const std::size_t first = all ? 0 : child;
  const std::size_t end = strategy == restart_strategy::one_for_one ? child + 1 : children_.size();
  // Waits of members that died before still count, and nobody overtakes an earlier member.
  for (const auto& e : children_)
    if (all && e.state == child_state::waiting)
      ready = std::max(ready, e.ready);
  for (std::size_t i = first; i < end; ++i) {
    auto& e = children_[i];
    if (i != child && e.state == child_state::waiting)
      ready = std::max(ready, e.ready);
    e.ready = ready;
    marked_[i] = e.state == child_state::running;
  }
}

void restart_core::stop_marked(std::vector<restart_action>& out) {
  for (std::size_t i = children_.size(); i-- > 0;) {
    if (!marked_[i])
      continue;
    marked_[i] = false;
    children_[i].state = child_state::stopping;
    out.push_back({restart_action::kind::stop, i, children_[i].life, std::nullopt});
  }
}

std::vector<restart_action> restart_core::proceed(instant now) {
  std::vector<restart_action> out;
  if (ending_) {
    if (gave_up_ && all_down())
      out.push_back(
          {restart_action::kind::give_up, culprit_, 0, std::exchange(gave_up_, std::nullopt)});
    return out;
  }
  if (anyone(child_state::stopping))
    return out;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    auto& e = children_[i];
    if (e.state != child_state::waiting || e.ready > now)
      continue;
    e.state = child_state::running;
    e.started = now;
    e.restarts += e.life > 0 ? 1 : 0;
    out.push_back({restart_action::kind::start, i, ++e.life, std::nullopt});
  }
  return out;
}

bool restart_core::anyone(child_state s) const noexcept {
  return std::any_of(children_.begin(), children_.end(),
                     [&](const entry& e) { return e.state == s; });
}

std::uint64_t restart_core::random() { // splitmix64
  seed_ += 0x9E3779B97F4A7C15U;
  std::uint64_t z = seed_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

void restart_core::check() const {
  for (const auto& e : children_) {
    DI_CHECK(e.recent.size() <= e.rule.restarts_max);
    DI_CHECK(e.credit >= duration{} && e.credit <= e.rule.window);
    DI_CHECK(!(ending_ && e.state == child_state::waiting));
    DI_CHECK(e.restarts <= e.life);
  }
  DI_CHECK(!gave_up_ || ending_);
}

} // namespace di::engine
