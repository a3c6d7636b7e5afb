// SPDX-License-Identifier: Apache-2.0
// The program `dilaunch`: arguments and exit codes, nothing else.
#include "launch/cmd_checkpoint.hpp"
#include "launch/commands.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app{"di: distributed inference of mixture-of-experts models with actors", "dilaunch"};
  app.set_version_flag("--version", DI_VERSION);
  app.footer("Exit codes: 0 done, 2 bad arguments or topology, 3 a part of the cluster gave up,\n"
             "4 a check failed, 5 finished with failed requests. `dilaunch COMMAND --help` says "
             "more.");
  di::launch::add_topology_commands(app, exit_code);
  di::launch::add_checkpoint_commands(app, exit_code);
  try {
    app.parse(argc, argv);
    if (argc == 1)
      std::fputs(app.help().c_str(), stdout);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2; // --help and --version come this way too
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dilaunch: %s\n", e.what());
    return 3;
  }
  return exit_code;
}
