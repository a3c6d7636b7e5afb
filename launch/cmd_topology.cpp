// SPDX-License-Identifier: Apache-2.0
// `dilaunch validate`, `plan` and `explain`.
#include "launch/commands.hpp"
#include "launch/explain.hpp"
#include "launch/foreign_names.hpp"
#include "launch/plan.hpp"
#include "launch/preflight.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <memory>

namespace di::launch {
namespace {

struct topology_arguments {
  std::string file;
  std::vector<std::string> sets;
  bool json = false;
};

void print(std::FILE* to, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), to);
}

int complain(const error& e) {
  print(stderr, e.what + "\n");
  return 2;
}

/// The plan of a topology with its model, or every error of both.
result<std::pair<topology, cluster_plan>> plan_of(const topology_arguments& a) {
  const auto foreign = read_foreign(process_environment());
  for (const auto& note : foreign.notes)
    print(stderr, note + "\n");
  std::vector<std::string> sets;
  DI_TRY(auto t, load_topology(a.file, foreign, a.sets, sets));
  DI_TRY(const auto model, open_model(t));
  DI_TRY(auto plan, make_plan(t, model, this_machine()));
  DI_TRY_VOID(check_files(t));
  return std::pair{std::move(t), std::move(plan)};
}

int validate(const topology_arguments& a) {
  const auto planned = plan_of(a);
  if (!planned.ok())
    return complain(planned.error());
  const auto& [t, plan] = *planned;
  const auto count = [](std::size_t n, std::string_view what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
  };
  print(stdout, fmt::format("{}: {} is valid: {}, {}, model {}\n", a.file, t.name,
                            count(plan.nodes.size(), "node"), count(plan.ranks.size(), "rank"),
                            t.model_path));
  return 0;
}

int show_plan(const topology_arguments& a) {
  const auto planned = plan_of(a);
  if (!planned.ok())
    return complain(planned.error());
  const auto& [t, plan] = *planned;
  print(stdout, a.json ? plan_json(t, plan) : plan_table(t, plan));
  return 0;
}

int show_explain(const std::string& key, bool markdown) {
  if (markdown) {
    print(stdout, topology_markdown());
    return 0;
  }
  const auto text = explain(key);
  if (!text.ok())
    return complain(text.error());
  print(stdout, *text);
  return 0;
}

} // namespace

void add_topology_commands(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<topology_arguments>();
  const auto with_topology = [&](CLI::App* c) {
    c->add_option("--topology,topology", arguments->file, "Topology file (doc/topology.md)")
        ->required()
        ->option_text("FILE");
    c->add_option("--set", arguments->sets, "Override a key: --set roles.decode.ep=2")
        ->option_text("KEY=VALUE")
        ->take_all()
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  auto* check = app.add_subcommand("validate", "Check a topology and its model; start nothing");
  with_topology(check);
  check->callback([arguments, &exit_code] { exit_code = validate(*arguments); });

  auto* plan = app.add_subcommand("plan", "Show who runs where and the memory of each rank");
  with_topology(plan);
  plan->add_flag("--json", arguments->json, "For programs");
  plan->callback([arguments, &exit_code] { exit_code = show_plan(*arguments); });

  auto* words = app.add_subcommand("explain", "Say what a topology key means; without one: all");
  const auto key = std::make_shared<std::string>();
  const auto markdown = std::make_shared<bool>(false);
  words->add_option("key", *key, "e.g. roles.decode.ep")->option_text("KEY");
  words->add_flag("--markdown", *markdown, "Print doc/topology.md");
  words->callback([=, &exit_code] { exit_code = show_explain(*key, *markdown); });
}

} // namespace di::launch
