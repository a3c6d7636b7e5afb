// SPDX-License-Identifier: Apache-2.0
// `dichaos sim --device cost`.
#pragma once

#include "chaos/cost_run.hpp"

#include <string>

namespace di::chaos {

struct cost_command {
  std::string table = "doc/measured/step_cost.json";
  std::string ranks = "64"; ///< "64", "8,16,64", or "64..1024": doubled each time
  std::string csv, plot;    ///< files; empty: the CSV goes to standard output, no plot
  bool calibrate = false;   ///< fit the costs of mail to the table's real runs first
  double latency_us = -1;   ///< [us] for the sizes asked for; negative: the table's
  cost_options options;     ///< all but the ranks
};

/// Runs it and prints the table's errors and a line for each size.
/// @return exit code of dichaos: 0, 2 (arguments), 3 (could not run)
int run_cost_command(const cost_command& command);

} // namespace di::chaos
