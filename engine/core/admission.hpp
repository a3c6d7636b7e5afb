// SPDX-License-Identifier: Apache-2.0
// Parts of SCHEDULER's admission that know nothing of messages: the order of the queue, quotas, and
// what a rank's outstanding work costs. Pure.
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/base/ids.hpp"

#include <map>
#include <set>
#include <string>
#include <string_view>

namespace di::engine {

/// Priorities are kept in [-priority_max, priority_max]; higher goes first.
inline constexpr std::int32_t priority_max = 10;

/// Place in the queue: the time of arrival, set back by priority * step. So a request of priority p
/// goes before one of priority 0 that came at most p * step earlier, and waiting alone moves every
/// request to the front: nothing that comes later than 2 * priority_max * step after it goes
/// before.
struct queue_place {
  std::int64_t virtual_ns = 0;
  std::uint64_t number = 0; ///< order of arrival, for ties
  request_id request;
  friend auto operator<=>(const queue_place&, const queue_place&) = default;
};

/// Requests without a rank, best first. One owner, one thread.
class admission_queue {
public:
  explicit admission_queue(duration priority_step) : step_{priority_step} {}

  /// @param arrived  when the request came first; a request that comes back keeps its place
  queue_place add(request_id id, std::int32_t priority, instant arrived);
  void put_back(const queue_place& place) { places_.insert(place); }
  void remove(const queue_place& place) { places_.erase(place); }
  const std::set<queue_place>& places() const noexcept { return places_; }
  std::size_t size() const noexcept { return places_.size(); }
  bool empty() const noexcept { return places_.empty(); }

private:
  duration step_;
  std::uint64_t number_ = 0;
  std::set<queue_place> places_;
};

/// Open choices per name (a tenant, a gateway).
class open_quota {
public:
  /// @param most  [choices] per name; 0: no bound
  explicit open_quota(std::uint64_t most) : most_{most} {}

  bool fits(std::string_view name, std::uint64_t choices) const;
  void take(std::string_view name, std::uint64_t choices);
  void give_back(std::string_view name, std::uint64_t choices);
  std::uint64_t open(std::string_view name) const;
  std::uint64_t most() const noexcept { return most_; }
  std::size_t names() const noexcept { return open_.size(); }

private:
  std::uint64_t most_;
  std::map<std::string, std::uint64_t, std::less<>> open_; ///< no zeros
};

/// What a rank still has to do, as far as is known.
struct rank_work {
  std::uint64_t prompt_rows = 0; ///< [rows] of prompts not yet computed
  double mean_context = 0;       ///< [tokens] that such a row attends to, on average
  std::uint64_t sequences = 0;   ///< that have or will have a row in each step
};

/// Relative costs; the unit is one row without attention.
struct work_weights {
  double context = 1.0 / 4'096; ///< of one token of context, per row
  double horizon = 64;          ///< [steps] for which the rows of running sequences count
};

/// Cost of the work ahead of a new request on a rank: prefill that is left, and the rows that
/// running sequences put beside its own in its first `horizon` steps. Smaller is better.
constexpr double outstanding_work(const rank_work& w, const work_weights& k) {
  return static_cast<double>(w.prompt_rows) * (1 + k.context * w.mean_context)
         + k.horizon * static_cast<double>(w.sequences);
}

} // namespace di::engine
