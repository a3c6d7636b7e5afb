// SPDX-License-Identifier: Apache-2.0
// TELEMETRY: generic shell over telemetry_core; and SAMPLER, which reports the counters of one
// process to it.
#pragma once

#include "actors/kit.hpp"
#include "actors/metrics.hpp"
#include "engine/core/telemetry_core.hpp"

#include <algorithm>
#include <map>
#include <string>

namespace di::actors {

struct telemetry {
  static constexpr auto kind = "telemetry";
  using core = engine::telemetry_core;
  using protocol = di::protocol<reacts_to<proto::sample>,                                // totals
                                replies_to<proto::get_snapshot>::with<proto::snapshot>>; // sums
};

struct sampler_options {
  address source; ///< prefix of this process
  incarnation life{};
  address telemetry = "/control/telemetry";
  duration period = std::chrono::seconds{1}; ///< while something is counted
  /// When nothing is, the wait doubles up to this: a group at rest hardly wakes.
  duration period_max = std::chrono::seconds{16};
  const metrics* counters = nullptr; ///< outlives the actor
};

/// Sends one sample at once and one per period; less and less often while no counter moves.
class sampler_core {
public:
  explicit sampler_core(sampler_options options) : options_{std::move(options)} {}

  void start(instant now, outbox& out) { on_due({1, 0}, now, out); }
  void on_due(timer which, instant /*now*/, outbox& out) {
    auto totals = options_.counters->totals();
    auto work = totals; // without the mail of this very report
    std::erase_if(work, [](const auto& c) { return c.first.starts_with("di_shell_"); });
    const bool at_rest = sequence_ != 0 && work == sent_;
    wait_ = at_rest ? std::min(2 * wait_, options_.period_max) : options_.period;
    out.send(
        options_.telemetry,
        proto::sample{options_.source, options_.life, ++sequence_, {totals.begin(), totals.end()}});
    sent_ = std::move(work);
    out.arm(which, wait_);
  }

private:
  sampler_options options_;
  std::uint64_t sequence_ = 0;
  std::map<std::string, double, std::less<>> sent_; ///< counters of work as last reported
  duration wait_ = options_.period;
};

struct sampler {
  static constexpr auto kind = "sampler";
  using core = sampler_core;
  using protocol = di::protocol<>;
};

} // namespace di::actors
