// SPDX-License-Identifier: Apache-2.0
// The program `dichaos`: arguments and exit codes, nothing else.
#include "chaos/commands.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cstdio>
#include <exception>

namespace {
#ifdef DI_PLANTED_BUGS
constexpr bool planted_build = true;
#else
constexpr bool planted_build = false;
#endif
} // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app{"di: faults on purpose, simulated and real", "dichaos"};
  app.footer("Exit codes: 0 everything held, 2 bad arguments, 3 could not run, 4 an invariant did "
             "not hold.");
  app.require_subcommand(1);
  di::chaos::add_plan_commands(app, exit_code);
  di::chaos::add_soak_commands(app, exit_code);
  di::chaos::add_sim_commands(app, exit_code, planted_build);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2; // --help comes this way too
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dichaos: %s\n", e.what());
    return 3;
  }
  return exit_code;
}
