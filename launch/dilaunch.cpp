// SPDX-License-Identifier: Apache-2.0
// The program `dilaunch`: arguments and exit codes, nothing else.
#include "launch/chat/cmd_chat.hpp"
#include "launch/cmd_checkpoint.hpp"
#include "launch/cmd_codec.hpp"
#include "launch/cmd_codec_parse.hpp"
#include "launch/cmd_tokenize.hpp"
#include "launch/commands.hpp"
#include "launch/units.hpp"
#include "messaging/wire/protocol_doc.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace {

/// `dilaunch plna` -> "no command plna; did you mean plan?"
bool unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-')
    return false;
  std::vector<std::string> names;
  for (const auto* c : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (c->get_name() == argv[1])
      return false;
    if (!c->get_group().empty())
      names.push_back(c->get_name());
  }
  const auto hint = di::launch::nearest(argv[1], names);
  std::fprintf(stderr, "dilaunch: no command %s%s\n", argv[1],
               hint.empty() ? "; --help lists them" : ("; did you mean " + hint + "?").c_str());
  return true;
}

/// `dilaunch --topology FILE ...` is `dilaunch up --topology FILE ...`, with all of its options.
bool is_bare_up(int argc, char** argv) {
  if (argc < 2 || argv[1][0] != '-')
    return false;
  return std::any_of(argv + 1, argv + argc, [](const std::string_view word) {
    return word == "--topology" || word.starts_with("--topology=");
  });
}

} // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app{"di: distributed inference of mixture-of-experts models with actors", "dilaunch"};
  app.set_version_flag("--version", DI_VERSION);
  app.footer("Exit codes: 0 done, 2 bad arguments or topology, 3 a part of the cluster gave up,\n"
             "4 a check failed, 5 finished with failed requests. `dilaunch COMMAND --help` says "
             "more.");
  bool print_protocol = false;
  app.add_flag("--print-protocol", print_protocol, "Print doc/protocol.md");
  std::string topology; // for --help only: see is_bare_up
  app.add_option("--topology", topology, "Serve this topology; `dilaunch up --help` lists options")
      ->option_text("FILE");
  di::launch::add_topology_commands(app, exit_code);
  di::launch::add_serve_commands(app, exit_code);
  di::launch::add_run_commands(app, exit_code);
  di::launch::add_admin_commands(app, exit_code);
  di::launch::add_operate_commands(app, exit_code);
  di::launch::add_trace_commands(app, exit_code);
  di::launch::add_bench_commands(app, exit_code);
  di::launch::add_chat_command(app, exit_code);
  di::launch::add_checkpoint_commands(app, exit_code);
  di::launch::add_tokenize_commands(app, exit_code);
  di::launch::add_codec_render_command(app, exit_code);
  di::launch::add_codec_parse_command(app, exit_code);
  if (unknown_command(app, argc, argv))
    return 2;
  std::vector<char*> words{argv, argv + argc};
  std::string up = "up";
  if (is_bare_up(argc, argv))
    words.insert(words.begin() + 1, up.data());
  try {
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2; // --help and --version come this way too
  } catch (const std::exception& e) {
    std::fprintf(stderr, "dilaunch: %s\n", e.what());
    return 3;
  }
  if (print_protocol)
    std::fputs(di::wire::render_protocol().c_str(), stdout);
  else if (argc == 1)
    std::fputs(app.help().c_str(), stdout);
  return exit_code;
}
