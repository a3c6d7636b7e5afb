// SPDX-License-Identifier: Apache-2.0
// `dilaunch bench`: a seeded workload through a real cluster, as JSON.
#include "engine/core/speculation_choice.hpp"
#include "launch/bench_work.hpp"
#include "launch/commands.hpp"
#include "launch/preflight.hpp"
#include "launch/run_arguments.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

struct bench_arguments {
  run_arguments run;
  bench_options work;
  std::vector<std::string> speculations;
};

int complain(const error& e, int code = exit_usage) {
  std::fprintf(stderr, "dilaunch bench: %s\n", e.what.c_str());
  return code;
}

/// A directory of one run, gone with it.
struct scratch {
  fs::path path;
  static result<scratch> make() {
    std::string name = (fs::temp_directory_path() / "di-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      return fail(ec::io_error, "{}: {}", name, std::strerror(errno));
    scratch s;
    s.path = name;
    return s;
  }
  scratch() = default;
  scratch(scratch&& other) noexcept : path{std::exchange(other.path, {})} {}
  ~scratch() {
    std::error_code ignored;
    if (!path.empty())
      fs::remove_all(path, ignored);
  }
};

result<void> write_file(const fs::path& path, const std::string& text) {
  std::ofstream file{path, std::ios::binary};
  if (!(file << text) || !file.flush())
    return fail(ec::io_error, "{}: {}", path.string(), std::strerror(errno));
  return {};
}

/// Off, and what was asked for; a model without draft layers has off only.
result<void> choose_speculations(bench_arguments& a, const engine::model_spec& spec) {
  a.work.speculations = {"off"};
  a.work.vocab = static_cast<std::uint32_t>(spec.vocab_size);
  if (spec.draft_layers() == 0) {
    if (!a.speculations.empty())
      return fail(ec::bad_argument, "--speculation {}: the model has no draft layers",
                  a.speculations.front());
    return {};
  }
  if (a.speculations.empty())
    a.speculations = {"varlen"};
  for (const std::string& s : a.speculations) {
    const auto known = engine::parse_speculation(s);
    if (!known)
      return fail(ec::bad_argument, "--speculation: {}", known.error().what);
    if (s != "off")
      a.work.speculations.push_back(s);
  }
  return {};
}

result<std::string> measure(bench_arguments& a, int& code) {
  DI_TRY(const scratch home, scratch::make());
  a.run.prompts = (home.path / "prompts.jsonl").string();
  a.run.output = (home.path / "answers.jsonl").string();
  a.run.quiet = true;
  DI_TRY_VOID(write_file(a.run.prompts, "")); // options are checked before the work is made
  cluster_options options;
  run_files files;
  {
    run_files checked;
    DI_TRY(options, cluster_options_of(a.run, checked));
  }
  DI_TRY(const auto model, open_model(options.config));
  DI_TRY_VOID(choose_speculations(a, model.spec()));
  const bench_work work = make_bench_work(a.work);
  DI_TRY_VOID(write_file(a.run.prompts, work.lines));
  DI_TRY(options, cluster_options_of(a.run, files));
  const std::string facts =
      fmt::format("\"topology\": {}, \"ranks\": {}, \"model\": {}",
                  nlohmann::json(options.config.name).dump(), options.plan.ranks.size(),
                  nlohmann::json(fs::path{options.config.model_path}.filename().string()).dump());
  code = run_cluster(std::move(options));
  if (code != exit_done && code != exit_requests_failed)
    return fail(ec::gave_up, "the run ended with exit code {}", code);
  std::ifstream file{a.run.output, std::ios::binary};
  std::ostringstream answers;
  answers << file.rdbuf();
  DI_TRY(const auto cases, read_bench(a.work, work, answers.str()));
  return bench_json(a.work, cases, facts);
}

int bench(bench_arguments& a) {
  int code = exit_done;
  const auto report = measure(a, code);
  if (!report.ok())
    return complain(report.error(), code == exit_done ? exit_usage : code);
  std::fputs(report->c_str(), stdout);
  return exit_done;
}

} // namespace

void add_bench_commands(CLI::App& app, int& exit_code) {
  const auto a = std::make_shared<bench_arguments>();
  auto* c = app.add_subcommand("bench", "Measure a seeded workload on a cluster; prints JSON");
  c->add_option("--topology,topology", a->run.topology, "Topology file (doc/topology.md)")
      ->required()
      ->option_text("FILE");
  c->add_option("--set", a->run.sets, "Override a topology key")
      ->option_text("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  c->add_option("--batch", a->work.batches, "Requests at a time; default 1,8,32")
      ->delimiter(',')
      ->check(CLI::Range(1U, 4'096U))
      ->option_text("N,...");
  c->add_option("--speculation", a->speculations, "Compared with off; default varlen")
      ->delimiter(',')
      ->option_text("fixed:N|varlen,...");
  c->add_option("--rounds", a->work.rounds, "Default 3")->check(CLI::Range(1U, 1'000U));
  c->add_option("--output-tokens", a->work.output_tokens, "Of each request; default 64")
      ->check(CLI::Range(2U, 1'000'000U));
  c->add_option("--prompt-tokens", a->work.prompt_tokens,
                "Random ids; default: sentences of about 15 tokens")
      ->check(CLI::Range(1U, 1'000'000U));
  c->add_option("--temperature", a->work.temperature, "Default 0")->check(CLI::Range(0.0, 10.0));
  c->add_option("--seed", a->work.seed, "Default 1");
  c->callback([a, &exit_code] { exit_code = bench(*a); });
}

} // namespace di::launch
