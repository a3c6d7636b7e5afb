// SPDX-License-Identifier: Apache-2.0
// TELEMETRY: generic shell over telemetry_core; and SAMPLER, which reports the counters of one
// process to it.
#pragma once

#include "actors/kit.hpp"
#include "actors/metrics.hpp"
#include "engine/core/telemetry_core.hpp"

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
  duration period = std::chrono::seconds{1};
  const metrics* counters = nullptr; ///< outlives the actor
};

/// Sends one sample at once and one per period.
class sampler_core {
public:
  explicit sampler_core(sampler_options options) : options_{std::move(options)} {}

  void start(instant now, outbox& out) { on_due({1, 0}, now, out); }
  void on_due(timer which, instant /*now*/, outbox& out) {
    const auto totals = options_.counters->totals();
    out.send(
        options_.telemetry,
        proto::sample{options_.source, options_.life, ++sequence_, {totals.begin(), totals.end()}});
    out.arm(which, options_.period);
  }

private:
  sampler_options options_;
  std::uint64_t sequence_ = 0;
};

struct sampler {
  static constexpr auto kind = "sampler";
  using core = sampler_core;
  using protocol = di::protocol<>;
};

} // namespace di::actors
