// SPDX-License-Identifier: Apache-2.0
// Counters of one process: shells add what cores count, the sampler sends the totals to TELEMETRY.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace di::actors {

/// Thread-safe. Totals only grow while the process lives.
class metrics {
public:
  void add(std::string_view metric, double n = 1) {
    const std::lock_guard lock{guard_};
    const auto found = totals_.find(metric);
    if (found != totals_.end())
      found->second += n;
    else
      totals_.emplace(metric, n);
  }

  std::map<std::string, double, std::less<>> totals() const {
    const std::lock_guard lock{guard_};
    return totals_;
  }

  double total(std::string_view metric) const {
    const std::lock_guard lock{guard_};
    const auto found = totals_.find(metric);
    return found == totals_.end() ? 0 : found->second;
  }

private:
  mutable std::mutex guard_;
  std::map<std::string, double, std::less<>> totals_;
};

} // namespace di::actors
