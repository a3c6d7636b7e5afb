// SPDX-License-Identifier: Apache-2.0
// Named places in product code: where a fault may be injected, and rare branches that some run must
// reach. Both cost one relaxed load while nothing is armed.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace di::probe {

namespace detail {
inline std::atomic<bool> armed{false};
bool decide(std::string_view name);
void mark(std::string_view name);
} // namespace detail

/// How often an armed fault point misbehaves.
struct plan {
  double probability = 1.0;        ///< [0, 1] per visit
  std::uint64_t skip = 0;          ///< visits that pass before the first fault
  std::uint64_t times_max = ~0ull; ///< faults in total
  int signal = 0; ///< not 0: the process sends it to itself there, also at reached()
};

/// Arms a fault point of this process. Called by tests and by the injector, never by product code.
void arm(std::string_view name, plan p);
/// Forgets the plan of one fault point.
void disarm(std::string_view name);
/// Counts visits of reached() from now on, without arming any fault.
void observe();
/// Forgets all plans and counts; everything is a no-op again.
void reset(std::uint64_t seed = 1);
/// Visits per name since observe(), arm() or reset(): reached() and fault_point() alike.
std::map<std::string, std::uint64_t> visits();

} // namespace di::probe

namespace di {

/// True if the caller shall misbehave now, e.g. `if (fault_point("bus.send.drop")) return;`
inline bool fault_point(std::string_view name) {
  return probe::detail::armed.load(std::memory_order_relaxed) && probe::detail::decide(name);
}

/// Marks a rare branch as visited, so that a run can prove that it was.
inline void reached(std::string_view name) {
  if (probe::detail::armed.load(std::memory_order_relaxed))
    probe::detail::mark(name);
}

} // namespace di
