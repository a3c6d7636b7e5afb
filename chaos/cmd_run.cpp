// SPDX-License-Identifier: Apache-2.0
// `dichaos run` and `dichaos check`.
#include "chaos/commands.hpp"
#include "chaos/trial.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace di::chaos {
namespace {

struct run_words {
  std::vector<std::string> plans;
  trial_options trial;
  std::string json;
  bool table = false;
  std::uint64_t seed = 0;
};

int complain(const error& e, int code) {
  std::fprintf(stderr, "dichaos: %s\n", e.what.c_str());
  return code;
}

int run_plans(const run_words& w) {
  std::vector<plan> plans;
  for (const std::string& file : w.plans) {
    auto p = load_plan(file);
    if (!p.ok())
      return complain(p.error(), 2);
    if (w.seed != 0)
      p->seed = w.seed;
    plans.push_back(std::move(*p));
  }
  std::string json;
  std::vector<verdict> verdicts;
  bool held = true;
  for (const plan& p : plans) {
    const auto outcome = run_trial(p, w.trial);
    if (!outcome.ok())
      return complain(outcome.error(), outcome.error().code == ec::bad_config ? 2 : 3);
    std::fputs(to_text(outcome->facts, outcome->judged).c_str(), stdout);
    std::fflush(stdout);
    json += (json.empty() ? "" : ",\n") + to_json(outcome->facts, outcome->judged);
    held = held && outcome->judged.held;
    verdicts.push_back(outcome->judged);
  }
  if (w.table)
    std::fputs(("\n" + peers_table(verdicts)).c_str(), stdout);
  if (!w.json.empty()) {
    std::ofstream file{w.json, std::ios::binary};
    file << (plans.size() == 1 ? json : "[" + json + "]\n");
    if (!file.flush())
      return complain({ec::io_error, w.json + " cannot be written"}, 3);
  }
  return held ? 0 : 4;
}

} // namespace

void add_plan_commands(CLI::App& app, int& exit_code) {
  const auto w = std::make_shared<run_words>();
  auto* run = app.add_subcommand("run", "Run plans on real processes; judge what came of them");
  run->add_option("plans", w->plans, "Fault plans (chaos/plans)")
      ->required()
      ->option_text("FILE...");
  run->add_option("--topology", w->trial.topology, "As for dilaunch run")
      ->required()
      ->option_text("FILE");
  run->add_option("--set", w->trial.sets, "Override a topology key")
      ->option_text("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  run->add_option("--dilaunch", w->trial.dilaunch, "The program; default: beside this one")
      ->option_text("FILE");
  run->add_option("--json", w->json, "Write the verdict here too")->option_text("FILE");
  run->add_option("--cache", w->trial.cache, "Keep answers of undisturbed runs here")
      ->option_text("FOLDER");
  run->add_option("--keep", w->trial.keep, "Keep logs and answers here")->option_text("FOLDER");
  run->add_option("--seed", w->seed, "Of random targets; default: the plan's");
  run->add_flag("--table", w->table, "End with a table of peers' figures");
  run->add_flag("--verbose", w->trial.verbose, "The runs' logs on stderr");
  run->callback([w, &exit_code] { exit_code = run_plans(*w); });

  const auto files = std::make_shared<std::vector<std::string>>();
  auto* check = app.add_subcommand("check", "Check plans; start nothing");
  check->add_option("plans", *files)->required()->option_text("FILE...");
  check->callback([files, &exit_code] {
    for (const std::string& file : *files)
      if (const auto p = load_plan(file); !p.ok())
        exit_code = complain(p.error(), 2);
  });
}

} // namespace di::chaos
