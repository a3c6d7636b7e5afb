// SPDX-License-Identifier: Apache-2.0
// `dichaos sim`.
#include "chaos/commands.hpp"
#include "chaos/sim_branches.hpp"
#include "chaos/sim_mutants.hpp"
#include "chaos/sim_run.hpp"
#include "messaging/base/probe.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

namespace di::chaos {

namespace {

struct sim_arguments {
  std::string device = "toy", ranks = "mixed", seeds = "1..100", faults = "all";
  std::uint64_t seed = 0; ///< 0: seeds
  std::string mutants;    ///< names with commas, or all; empty: none
  std::string plant;      ///< a bug that the cores have; empty: none
  bool once = false, chart = false, everything = false, branches = false;
  std::size_t lines = 120, failures_max = 3;
};

template <class Int>
bool read_number(std::string_view words, Int& out) {
  const auto [end, error] = std::from_chars(words.data(), words.data() + words.size(), out);
  return error == std::errc{} && end == words.data() + words.size();
}

/// "1..500" or "7"
result<std::pair<std::uint64_t, std::uint64_t>> read_seeds(std::string_view words) {
  std::uint64_t first = 0, last = 0;
  const auto dots = words.find("..");
  const bool range = dots != std::string_view::npos;
  if (!read_number(words.substr(0, dots), first)
      || (range && !read_number(words.substr(dots + 2), last)) || (range && last < first))
    return fail(ec::bad_argument, "--seeds {}: a number or FIRST..LAST is needed", words);
  return std::pair{first, range ? last : first};
}

void tell_failure(sim::seed_report report, const sim_arguments& a) {
  std::fputs(sim::words_of(report).c_str(), stdout);
  report.faults = sim::shrink(report);
  std::printf("  shrunk to %zu faults; the last messages (times in ms):\n", report.faults.size());
  for (const sim::fault& f : report.faults)
    std::printf("    %s\n", sim::words_of(f).c_str());
  std::fputs(sim::chart_of(report, a.lines, a.everything).c_str(), stdout);
  std::printf("  again: dichaos sim --ranks %u --seed %llu --faults %s\n\n", report.ranks,
              static_cast<unsigned long long>(report.seed), a.faults.c_str());
  std::fflush(stdout);
}

/// Rare branches that some seed came by and how often, and those that none did.
int list_branches() {
  const sim::branch_report report = sim::tell_branches(probe::visits());
  std::fputs(report.words.c_str(), stdout);
  std::printf("%zu rare branches, %u never reached, %u unknown\n", sim::branches().size(),
              report.never, report.unknown);
  return report.unknown == 0 ? 0 : 4;
}

int run_seeds(const sim_arguments& a, sim::seed_setting setting, std::uint64_t first,
              std::uint64_t last) {
  const auto began = std::chrono::steady_clock::now();
  std::uint64_t failed = 0, events = 0, tokens = 0, deaths = 0, views = 0;
  double virtual_s = 0;
  for (std::uint64_t seed = first; seed <= last && failed < a.failures_max; ++seed) {
    setting.seed = seed;
    const sim::seed_report report = sim::run_seed(setting);
    events += report.outcome.events;
    tokens += report.outcome.tokens;
    deaths += report.outcome.deaths;
    views += report.outcome.views;
    virtual_s += report.outcome.virtual_s;
    if (!report.outcome.failure.empty()) {
      ++failed;
      tell_failure(report, a);
    } else if (first == last) {
      std::fputs(sim::words_of(report).c_str(), stdout);
      if (a.chart)
        std::fputs(sim::chart_of(report, a.lines, a.everything).c_str(), stdout);
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("%llu seeds, %llu failed; %llu events, %llu tokens, %llu deaths, %llu views in %.0f "
              "virtual s; %.1f s\n",
              static_cast<unsigned long long>(last - first + 1),
              static_cast<unsigned long long>(failed), static_cast<unsigned long long>(events),
              static_cast<unsigned long long>(tokens), static_cast<unsigned long long>(deaths),
              static_cast<unsigned long long>(views), virtual_s, took.count());
  return failed == 0 ? 0 : 4;
}

/// Each planted bug must be caught within its seeds, and the cores without one must pass the same.
int run_mutants(const sim_arguments& a) {
  sim::catch_checks();
  std::uint32_t missed = 0, hunted = 0;
  std::map<std::pair<sim::fault_mask, std::uint32_t>, std::uint64_t> seeds; ///< by what they draw
  const std::string wanted = "," + a.mutants + ",";
  for (const sim::mutant& m : sim::mutants()) {
    if (a.mutants != "all" && wanted.find(fmt::format(",{},", m.name)) == std::string::npos)
      continue;
    ++hunted;
    std::uint64_t& most = seeds[{m.faults, m.ranks}];
    most = std::max(most, m.seeds);
    const auto began = std::chrono::steady_clock::now();
    const sim::mutant_outcome got = sim::hunt(m);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    missed += got.seed == 0;
    std::printf("%s %-24s seed %3llu of %3llu  %4.1f s  %s: %.*s\n",
                got.seed == 0 ? "MISSED" : "caught", m.name.data(),
                static_cast<unsigned long long>(got.seed), static_cast<unsigned long long>(m.seeds),
                took.count(), m.means.data(), 100,
                got.failure.substr(0, got.failure.find('\n')).c_str());
    std::fflush(stdout);
  }
  std::printf("%u of %u planted bugs caught; now the cores without any, the same seeds\n",
              hunted - missed, hunted);
  if (hunted == 0
      || (a.mutants != "all"
          && hunted != 1 + std::count(a.mutants.begin(), a.mutants.end(), ','))) {
    std::fprintf(stderr, "dichaos: --mutants %s: only %u of these names are planted bugs\n",
                 a.mutants.c_str(), hunted);
    return 2;
  }
  int code = missed == 0 ? 0 : 4;
  for (const auto& [drawn, most] : seeds) {
    sim::seed_setting clean;
    clean.twice = false;
    std::tie(clean.kinds, clean.ranks) = drawn;
    code = std::max(code, run_seeds(a, clean, 1, most));
  }
  return code;
}

/// The program with planted bugs lies beside this one and takes the same words.
int run_planted_program() {
  std::error_code problem;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", problem);
  const std::string other = (self.parent_path() / "dichaos_planted").string();
  std::ifstream file{"/proc/self/cmdline", std::ios::binary};
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');)
    words.push_back(word);
  std::vector<char*> pointers;
  for (std::string& word : words)
    pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(other.c_str(), pointers.data());
  std::fprintf(stderr, "dichaos sim: %s: %s\n", other.c_str(), std::strerror(errno));
  return 3;
}

int run(const sim_arguments& a) {
  const auto bad = [](const error& e) {
    std::fprintf(stderr, "dichaos sim: %s\n", e.what.c_str());
    return 2;
  };
  sim::seed_setting setting;
  setting.twice = !a.once;
  if (a.ranks != "mixed" && (!read_number(a.ranks, setting.ranks) || setting.ranks < 3))
    return bad({ec::bad_argument, "--ranks " + a.ranks + ": 3 or more, or mixed"});
  const auto kinds = sim::parse_faults(a.faults);
  if (!kinds)
    return bad(kinds.error());
  setting.kinds = *kinds;
  auto seeds = read_seeds(a.seeds);
  if (!seeds)
    return bad(seeds.error());
  if (a.seed != 0)
    *seeds = {a.seed, a.seed};
  sim::catch_checks();
  const auto& bugs = sim::mutants();
  if (!a.plant.empty()
      && std::none_of(bugs.begin(), bugs.end(), [&](const auto& m) { return m.name == a.plant; }))
    return bad(
        {ec::bad_argument, fmt::format("--plant {}: there is no such planted bug", a.plant)});
  sim::plant(a.plant);
  if (a.branches)
    probe::observe();
  const int code = run_seeds(a, setting, seeds->first, seeds->second);
  return a.branches ? std::max(code, list_branches()) : code;
}

} // namespace

void add_sim_commands(CLI::App& app, int& exit_code, bool planted) {
  auto* sim = app.add_subcommand("sim", "Run the cores of a cluster on a virtual clock");
  auto a = std::make_shared<sim_arguments>();
  sim->add_option("--ranks", a->ranks, "Ranks, 3 to 128, or mixed: each seed decides");
  sim->add_option("--device", a->device, "toy: exact; cost: takes the time that a table says")
      ->check(CLI::IsMember({"toy", "cost"}));
  sim->add_option("--seeds", a->seeds, "FIRST..LAST");
  sim->add_option("--seed", a->seed, "One seed");
  sim->add_option("--faults", a->faults, "all, none, or kinds with commas");
  sim->add_flag("--once", a->once, "Do not run every seed a second time for its trace");
  sim->add_flag("--chart", a->chart, "With --seed: draw the end of the run even if it held");
  sim->add_option("--lines", a->lines, "Of a chart");
  sim->add_flag("--everything", a->everything, "Expert calls and loads stand in charts too");
  sim->add_option("--failures", a->failures_max, "Stop after so many failing seeds");
  sim->add_flag("--branches", a->branches, "List the rare branches, visited or never");
  sim->add_option("--mutants", a->mutants, "Plant bugs in the cores and catch them: names, or all");
  sim->add_option("--plant", a->plant, "Run the seeds with this bug in the cores");
  sim->callback([&exit_code, a, planted, costs = add_cost_options(*sim)] {
    if (a->device == "cost")
      exit_code = costs(a->ranks);
    else if (a->mutants.empty())
      exit_code = planted || a->plant.empty() ? run(*a) : run_planted_program();
    else
      exit_code = planted ? run_mutants(*a) : run_planted_program();
  });
}

} // namespace di::chaos
