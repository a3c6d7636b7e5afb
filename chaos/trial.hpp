// SPDX-License-Identifier: Apache-2.0
// A plan on a topology: undisturbed run, disturbed run, verdict.
#pragma once

#include "chaos/report.hpp"
#include "chaos/verdict.hpp"
#include "messaging/base/result.hpp"

#include <string>
#include <vector>

namespace di::chaos {

struct trial_options {
  std::string topology;          ///< file
  std::string dilaunch;          ///< empty: beside this program, in ../launch
  std::vector<std::string> sets; ///< on top of the plan's
  std::string cache;             ///< folder for undisturbed answers; empty: none are kept
  std::string keep;              ///< folder for logs and answers; empty: they go
  bool verbose = false;
};

struct trial_outcome {
  report_facts facts;
  verdict judged;
};

/// Checks the plan against the topology, runs twice (once if the undisturbed answers are known)
/// and judges.
/// @errors bad_config, io_error, gave_up: the undisturbed run did not end well
result<trial_outcome> run_trial(plan p, const trial_options& o);

} // namespace di::chaos
