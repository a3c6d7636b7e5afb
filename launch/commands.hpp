// SPDX-License-Identifier: Apache-2.0
// Commands about topologies and runs. Each function adds its commands to the program; a command
// sets `exit_code`.
#pragma once

namespace CLI {
class App;
}

namespace di::launch {

/// validate, plan, explain.
void add_topology_commands(CLI::App& app, int& exit_code);

/// run, node (hidden), child (hidden), agent; `--topology` without a command.
void add_run_commands(CLI::App& app, int& exit_code);

} // namespace di::launch
