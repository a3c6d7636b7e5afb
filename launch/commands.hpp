// SPDX-License-Identifier: Apache-2.0
// Commands about topologies and runs. Each function adds its commands to the program; a command
// sets `exit_code`.
#pragma once

#include "messaging/base/result.hpp"

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace di::launch {

/// validate, plan, explain.
void add_topology_commands(CLI::App& app, int& exit_code);

/// run, agent, and the hidden node and child.
void add_run_commands(CLI::App& app, int& exit_code);

/// status, scale, drain, rejoin, kill, upgrade: orders to a run that is under way.
void add_admin_commands(CLI::App& app, int& exit_code);

/// down, reload, logs, top.
void add_operate_commands(CLI::App& app, int& exit_code);

/// bench.
void add_bench_commands(CLI::App& app, int& exit_code);

/// trace.
void add_trace_commands(CLI::App& app, int& exit_code);

/// Merges ring files into one picture at `out`, which may be one of them; written beside it first.
/// @errors io_error, and those of read_trace_file()
result<void> draw_trace(const std::vector<std::string>& rings, const std::string& out);

/// up.
void add_serve_commands(CLI::App& app, int& exit_code);

} // namespace di::launch
