// SPDX-License-Identifier: Apache-2.0
// Order of the queue and counting of quotas.
#include "engine/core/admission.hpp"

#include "messaging/base/check.hpp"

#include <algorithm>

namespace di::engine {

queue_place admission_queue::add(request_id id, std::int32_t priority, instant arrived) {
  const std::int64_t steps = std::clamp(priority, -priority_max, priority_max);
  const queue_place place{arrived.ns - steps * step_.count(), ++number_, id};
  places_.insert(place);
  return place;
}

bool open_quota::fits(std::string_view name, std::uint64_t choices) const {
  return most_ == 0 || open(name) + choices <= most_;
}

void open_quota::take(std::string_view name, std::uint64_t choices) {
  const auto at = open_.find(name);
  if (at != open_.end())
    at->second += choices;
  else if (choices > 0)
    open_.emplace(name, choices);
}

void open_quota::give_back(std::string_view name, std::uint64_t choices) {
  const auto at = open_.find(name);
  DI_CHECK(choices == 0 || (at != open_.end() && at->second >= choices));
  if (choices > 0 && (at->second -= choices) == 0)
    open_.erase(at);
}

std::uint64_t open_quota::open(std::string_view name) const {
  const auto at = open_.find(name);
  return at == open_.end() ? 0 : at->second;
}

} // namespace di::engine
