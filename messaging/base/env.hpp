// SPDX-License-Identifier: Apache-2.0
// Time and randomness as one small interface, so that a test or the simulator can supply both.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>

namespace di {

/// A span of time. Negative spans do not occur.
using duration = std::chrono::nanoseconds;

/// A point on the monotonic clock of one process (or of the simulator); not comparable between
/// processes.
struct instant {
  std::int64_t ns = 0;
  friend constexpr auto operator<=>(const instant&, const instant&) = default;
  friend constexpr instant operator+(instant t, duration d) { return {t.ns + d.count()}; }
  friend constexpr duration operator-(instant a, instant b) { return duration{a.ns - b.ns}; }
};

/// The outside world as far as decisions may see it.
class env {
public:
  virtual ~env() = default;
  virtual instant now() const = 0;
  /// 64 random bits; seeded in tests and in the simulator.
  virtual std::uint64_t random() = 0;
};

/// The monotonic clock and the operating system's randomness. Thread-safe.
env& real_env();

} // namespace di
