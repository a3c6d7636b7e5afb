// SPDX-License-Identifier: Apache-2.0
// `dilaunch run`, and the hidden commands that its processes are: node, child.
#include "launch/agent.hpp"
#include "launch/child_main.hpp"
#include "launch/cluster.hpp"
#include "launch/commands.hpp"
#include "launch/foreign_names.hpp"
#include "launch/join_token.hpp"
#include "launch/node.hpp"
#include "launch/preflight.hpp"
#include "launch/process.hpp"
#include "launch/run_arguments.hpp"
#include "launch/run_journal.hpp"
#include "launch/units.hpp"
#include "messaging/base/env.hpp"
#include "messaging/base/trace.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <unistd.h>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

int complain(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  return exit_usage;
}

} // namespace

result<std::string> common_options_of(const run_arguments& a, cluster_options& o) {
  o.config.file = fs::absolute(a.topology).lexically_normal().string();
  const auto foreign = read_foreign(process_environment());
  for (const auto& note : foreign.notes)
    complain(note);
  auto sets = a.sets;
  if (!a.speculation.empty())
    sets.push_back("roles.decode.speculation=" + a.speculation);
  DI_TRY(o.config, load_topology(o.config.file, foreign, sets, o.sets));
  std::ifstream file{o.config.file, std::ios::binary};
  std::stringstream text;
  text << file.rdbuf();
  o.topology_text = text.str();
  DI_TRY(const auto model, open_model(o.config));
  DI_TRY(o.plan, make_plan(o.config, model, this_machine()));
  DI_TRY_VOID(check_files(o.config));
  if (o.plan.launcher == launcher_kind::agent && o.plan.nodes.size() > 1 && a.token_file.empty())
    return fail(ec::bad_argument, "cluster.launcher agent needs --token-file FILE");
  if (!a.token_file.empty())
    DI_TRY_VOID(check_token_file(a.token_file));
  DI_TRY(o.program, own_program());
  o.log_dir = a.log_dir.empty() ? "" : fs::absolute(a.log_dir).string();
  o.quiet = a.quiet;
  o.log_level = a.log_level.empty() ? o.config.log_level : a.log_level;
  o.token_file = a.token_file;
  return model.hash();
}

result<cluster_options> cluster_options_of(const run_arguments& a, run_files& files) {
  cluster_options o;
  DI_TRY(const auto contract, common_options_of(a, o));
  DI_TRY(o.batch, files.open(a.prompts, a.output));
  o.batch.window = a.window;
  o.batch.seed = real_env().random();
  o.lines_to = files.lines_to();
  DI_TRY(o.journal, journal_of(a, o.config, contract, files));
  if (!a.trace.empty()) {
    DI_TRY(o.batch.trace, files.open_trace(a.trace));
    o.trace_spans = a.trace_spans;
  }
  o.batch.progress = ::isatty(STDERR_FILENO) == 1;
  return o;
}

namespace {

int run(const run_arguments& a) {
  if (!fill_standard_descriptors() && (a.output.empty() || a.output == "-")) {
    complain("dilaunch: output: standard output is closed");
    return exit_gave_up;
  }
  run_files files;
  auto options = cluster_options_of(a, files);
  if (!options.ok())
    return complain(options.error().what);
  const int code = run_cluster(std::move(*options));
  const bool finished = code == exit_done || code == exit_requests_failed;
  const bool draw = finished && a.trace.ends_with(".json") && !files.rings().empty();
  const auto drawn = draw ? draw_trace({files.rings()}, a.trace) : result<void>{};
  const auto kept = files.end_trace(finished && !draw);
  for (const auto* step : {&drawn, &kept})
    if (!step->ok()) {
      complain("--trace " + step->error().what);
      return exit_gave_up;
    }
  return code;
}

void add_agent(CLI::App& app, int& exit_code) {
  const auto a = std::make_shared<agent_options>();
  const auto wait = std::make_shared<std::string>("60s");
  auto* c = app.add_subcommand("agent", "Make this host a node of a run started elsewhere");
  c->add_option("--token-file", a->token_file, "Written by dilaunch run --token-file; mode 0600")
      ->required()
      ->option_text("FILE");
  c->add_option("--join", a->join, "Where the launcher is; default: as the token says")
      ->option_text("tcp://HOST:PORT");
  c->add_option("--node", a->node, "Which node to be; default: SLURM_NODEID, or by host name");
  c->add_option("--host", a->host, "This host's name in the topology")->option_text("NAME");
  c->add_option("--wait", *wait, "For the token file and the launcher; default 60s")
      ->option_text("TIME");
  c->callback([a, wait, &exit_code] {
    const auto t = parse_time(*wait);
    if (!t.ok()) {
      exit_code = complain("--wait: " + t.error().what);
      return;
    }
    a->wait = std::chrono::duration_cast<std::chrono::milliseconds>(*t);
    take_slurm(*a);
    exit_code = run_agent(*a);
  });
}

} // namespace

void add_run_commands(CLI::App& app, int& exit_code) {
  const auto a = std::make_shared<run_arguments>();
  auto* c = app.add_subcommand("run", "Answer a file of prompts, then end");
  c->add_option("--topology,topology", a->topology, "Topology file (doc/topology.md)")
      ->required()
      ->option_text("FILE");
  c->add_option("--prompts", a->prompts, "JSON lines, one request each; - is standard input")
      ->required()
      ->option_text("FILE");
  c->add_option("--output", a->output,
                "JSON lines in the order of the prompts; default and -: stdout")
      ->option_text("FILE");
  c->add_option("--journal", a->journal,
                "Keep the journal of the run here, so that --resume can finish it; as --set "
                "journal.path")
      ->option_text("DIR");
  c->add_option("--resume", a->resume,
                "Finish an interrupted run: its journal, with the same prompts and output")
      ->option_text("DIR");
  c->add_option("--set", a->sets, "Override a topology key: --set roles.decode.threads=2")
      ->option_text("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  c->add_option("--speculation", a->speculation,
                "off, fixed:N or varlen; as --set roles.decode.speculation")
      ->option_text("HOW");
  c->add_option("--log-dir", a->log_dir, "Keep the log of every process here")
      ->option_text("FOLDER");
  c->add_option("--log-level", a->log_level, "debug, info, warn, error or off")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}));
  c->add_flag("--quiet", a->quiet, "No logs on stderr");
  c->add_option("--window", a->window,
                "Requests open at a time; 1: one after the other. Default: 64 for each rank")
      ->check(CLI::PositiveNumber)
      ->option_text("N");
  c->add_option("--token-file", a->token_file, "Agent launcher: written for the agents, mode 0600")
      ->option_text("FILE");
  c->add_option("--trace", a->trace,
                "Keep spans of all processes: FILE.json opens in ui.perfetto.dev; any other name "
                "keeps them raw for dilaunch trace")
      ->option_text("FILE");
  c->add_option("--trace-spans", a->trace_spans, "Spans that each process keeps; default 65536")
      ->check(CLI::Range(1U, static_cast<unsigned>(trace::spans_max)))
      ->option_text("N");
  c->callback([a, &exit_code] { exit_code = run(*a); });

  add_agent(app, exit_code);
  auto* node = app.add_subcommand("node", "")->group("");
  const auto index = std::make_shared<std::uint32_t>(0);
  node->add_option("--index", *index)->required();
  node->callback([index, &exit_code] {
    const auto program = own_program();
    const auto voice = make_pipe_voice();
    exit_code = program.ok() ? serve_node({*index, *program}, *voice) : exit_gave_up;
  });

  auto* child = app.add_subcommand("child", "")->group("");
  const auto words = std::make_shared<std::vector<std::string>>();
  child->add_option("role", *words); // for people who look at process lists
  child->callback([words, &exit_code] { exit_code = child_main(); });
}

} // namespace di::launch
