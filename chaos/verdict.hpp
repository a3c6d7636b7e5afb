// SPDX-License-Identifier: Apache-2.0
// What a disturbed run was worth: tokens against the undisturbed run, pauses as clients saw them,
// times of detection and repair, and whether the plan's expectations held. Pure.
#pragma once

#include "chaos/answers.hpp"
#include "chaos/plan.hpp"
#include "chaos/run.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace di::chaos {

struct quantiles {
  std::size_t count = 0;
  double p50 = 0, p99 = 0, max = 0; ///< [ms]
};
quantiles quantiles_of(std::vector<double> values);

/// How streams stood to a fault when it struck.
struct pauses {
  quantiles survivor; ///< served by a rank that the fault did not touch
  quantiles victim;   ///< served by one that it did
  quantiles fresh;    ///< no token yet: wait for the first one, all of it
  std::vector<double> survivor_ms, victim_ms, fresh_ms; ///< what they were made of
};

/// One fault and what followed. Times are [ms] after it; nothing: not seen.
struct aftermath {
  injected fault;
  std::optional<double> detect_ms, commit_ms, repair_ms, control_back_ms, rejoin_ms;
  pauses pause; ///< longest gap in the fault's time minus the stream's median gap before
  /// Of a return in a view of its own: each stream's longest gap that ended after it and began
  /// between the loss's view and a second behind it, minus the stream's median gap before.
  std::vector<double> rejoin_pause_ms;
  quantiles rejoin_pause;
};

struct verdict {
  bool held = true;
  std::vector<std::string> broken; ///< expectations that did not hold, one line each

  std::size_t requests = 0, failed = 0, identical = 0;
  std::vector<std::string> failures; ///< some: "request 3: deadline_exceeded"
  std::size_t tokens_lost = 0, tokens_doubled = 0, tokens_reordered = 0, tokens_changed = 0;
  std::size_t resumed = 0; ///< requests with more than one attempt
  std::size_t views = 0;   ///< committed after the first
  std::size_t expelled = 0, joined = 0, members = 0, false_expulsions = 0;
  std::vector<aftermath> faults;
  std::vector<std::string> leaks;
  std::vector<std::string> descriptor_growth; ///< of survivors, where there is some
  double before_tokens_per_s = 0, reference_tokens_per_s = 0, run_tokens_per_s = 0;
  double gap_p50_ms = 0; ///< of all streams before the first fault
};

/// @param reference  answers of the undisturbed run; empty: bytes are not compared
verdict judge(const plan& p, const std::vector<answer>& reference, const run_record& run,
              std::uint32_t ranks);

} // namespace di::chaos
