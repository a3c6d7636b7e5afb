// SPDX-License-Identifier: Apache-2.0
// Places of requests whose clients left and may come back: they go on computing, so they still
// count against their keys.
#pragma once

#include "launch/serve/admission.hpp"
#include "messaging/base/ids.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace di::serve {

/// Bounded by the places there are. Any thread.
class parked_places {
public:
  /// @param dedup  of its Idempotency-Key; empty: it had none
  void park(request_id request, std::string dedup, admission::ticket place, instant until) {
    const std::scoped_lock lock{guard_};
    parked_.push_back({request, std::move(dedup), std::move(place), until});
  }

  /// Gives back the places of those who will not come, and of the request that now does: its client
  /// names it, or sends its key again.
  void release(instant now, std::optional<request_id> request, const std::string& dedup) {
    std::vector<parked> gone; // their places are given back outside the lock
    const std::scoped_lock lock{guard_};
    const auto first = std::stable_partition(parked_.begin(), parked_.end(), [&](const parked& p) {
      return p.until > now && p.request != request && (dedup.empty() || p.dedup != dedup);
    });
    std::move(first, parked_.end(), std::back_inserter(gone));
    parked_.erase(first, parked_.end());
  }

  std::size_t size() const {
    const std::scoped_lock lock{guard_};
    return parked_.size();
  }

private:
  struct parked {
    request_id request;
    std::string dedup;
    admission::ticket place;
    instant until;
  };
  mutable std::mutex guard_;
  std::vector<parked> parked_;
};

} // namespace di::serve
