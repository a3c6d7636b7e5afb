// SPDX-License-Identifier: Apache-2.0
// Pending timers of one actor, by name and by time. Pure: the caller owns the clock.
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/proto/outbox.hpp"

#include <map>
#include <optional>

namespace di::actors {

/// Each name is pending at most once; arming it again moves it. Owned by one driver.
class timer_queue {
public:
  void arm(timer which, instant at) {
    disarm(which);
    const auto place = by_time_.emplace(at, which);
    by_name_.emplace(which, place);
  }

  void disarm(timer which) {
    const auto found = by_name_.find(which);
    if (found == by_name_.end())
      return;
    by_time_.erase(found->second);
    by_name_.erase(found);
  }

  /// Takes the earliest timer that is due. Timers of one instant fire in the order of arming.
  std::optional<timer> take_due(instant now) {
    if (by_time_.empty() || by_time_.begin()->first > now)
      return std::nullopt;
    const timer which = by_time_.begin()->second;
    disarm(which);
    return which;
  }

  std::optional<instant> next() const {
    return by_time_.empty() ? std::nullopt : std::optional{by_time_.begin()->first};
  }
  std::size_t size() const noexcept { return by_name_.size(); }

private:
  using times = std::multimap<instant, timer>;
  times by_time_;
  std::map<timer, times::iterator> by_name_;
};

} // namespace di::actors
