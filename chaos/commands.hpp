// SPDX-License-Identifier: Apache-2.0
// Commands of `dichaos`. Each function adds its commands to the program; a command sets
// `exit_code`: 0 held, 2 bad arguments, 3 could not run, 4 an invariant did not hold.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace di::chaos {

/// Options of `sim --device cost`. @return runs it with the text of --ranks
std::function<int(const std::string& ranks)> add_cost_options(CLI::App& sim);
/// sim: the production cores on a virtual clock.
/// @param planted  this program's cores can have planted bugs
void add_sim_commands(CLI::App& app, int& exit_code, bool planted);

/// run, check: fault plans on real processes.
void add_plan_commands(CLI::App& app, int& exit_code);

/// soak, cycles: random plans and repeated kills.
void add_soak_commands(CLI::App& app, int& exit_code);

} // namespace di::chaos
