// SPDX-License-Identifier: Apache-2.0
// `dichaos sim`.
#include "chaos/commands.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cstdio>

namespace di::chaos {

void add_sim_commands(CLI::App& app, int& exit_code) {
  auto* sim = app.add_subcommand("sim", "Run the cores of a cluster on a virtual clock");
  sim->callback([&exit_code] {
    std::fputs("dichaos sim: not here yet\n", stderr);
    exit_code = 3;
  });
}

} // namespace di::chaos
