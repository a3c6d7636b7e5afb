// SPDX-License-Identifier: Apache-2.0
// `dichaos soak` and `dichaos cycles`.
#include "chaos/commands.hpp"
#include "chaos/soak.hpp"
#include "chaos/trial.hpp"
#include "launch/topology.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <unistd.h>

namespace di::chaos {
namespace {

using clock = std::chrono::steady_clock;

struct soak_words {
  trial_options trial;
  std::string json;
  std::uint64_t seed = 1;
  double minutes = 1;
  std::uint32_t first_round = 0, rounds = 0, count = 200;
  bool print = false;
};

/// What many trials add up to.
struct tally {
  std::vector<verdict> verdicts;
  std::vector<std::string> broken; ///< "round 3: ..."
  std::size_t requests = 0, failed = 0, identical = 0, struck = 0, expelled = 0, joined = 0,
              wrongly = 0, control_deaths = 0;

  void add(std::uint32_t round, const verdict& v) {
    requests += v.requests;
    failed += v.failed;
    identical += v.identical;
    struck += v.faults.size();
    expelled += v.expelled;
    joined += v.joined;
    wrongly += v.false_expulsions;
    for (const aftermath& a : v.faults)
      control_deaths += a.fault.control ? 1 : 0;
    for (const std::string& b : v.broken)
      broken.push_back(fmt::format("round {}: {}", round, b));
    verdicts.push_back(v);
  }
};

std::string tally_json(const soak_words& w, const report_facts& facts, const tally& t,
                       double seconds) {
  std::string broken;
  for (const std::string& b : t.broken) {
    std::string plain = b;
    std::replace(plain.begin(), plain.end(), '"', '\'');
    std::replace(plain.begin(), plain.end(), '\\', '/');
    broken += fmt::format("{}\"{}\"", broken.empty() ? "" : ", ", plain);
  }
  return fmt::format(
      "{{\"topology\": \"{}\", \"ranks\": {}, \"seed\": {}, \"rounds\": {}, \"seconds\": {:.0f}, "
      "\"commit\": \"{}\", \"machine\": \"{}\",\n \"held\": {}, \"broken\": [{}],\n \"requests\": "
      "{}, \"failed\": {}, \"byte_equal\": {}, \"faults\": {}, \"control_deaths\": {}, "
      "\"expelled\": {}, \"joined\": {}, \"false_expulsions\": {},\n \"figures\": {}}}\n",
      facts.topology, facts.ranks, w.seed, t.verdicts.size(), seconds, facts.commit, facts.machine,
      t.broken.empty(), broken, t.requests, t.failed, t.identical, t.struck, t.control_deaths,
      t.expelled, t.joined, t.wrongly, figures_json(t.verdicts));
}

/// Makes plans until `more` says no; judges each.
template <class Next>
int many(const soak_words& w, Next next) {
  const auto began = clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(clock::now() - began).count(); };
  tally t;
  report_facts facts;
  trial_options trial = w.trial;
  const std::string own_cache = fmt::format("/tmp/dch-cache-{}", ::getpid());
  if (trial.cache.empty())
    trial.cache = own_cache;
  int code = 0;
  for (std::uint32_t round = w.first_round; code == 0; ++round) {
    const std::optional<plan> p = next(round, seconds(), t);
    if (!p)
      break;
    if (w.print)
      std::fputs(to_yaml(*p).c_str(), stdout);
    const auto outcome = run_trial(*p, trial);
    if (!outcome.ok()) {
      std::fprintf(stderr, "dichaos: round %u: %s\n", round, outcome.error().what.c_str());
      code = 3;
      break;
    }
    facts = outcome->facts;
    t.add(round, outcome->judged);
    std::fputs(to_text(facts, outcome->judged).c_str(), stdout);
    std::fflush(stdout);
  }
  std::error_code ignored;
  std::filesystem::remove_all(own_cache, ignored);
  const std::string json = tally_json(w, facts, t, seconds());
  std::fputs(("\n" + peers_table(t.verdicts) + "\n" + json).c_str(), stdout);
  if (!w.json.empty())
    std::ofstream{w.json, std::ios::binary} << json;
  return code != 0 ? code : t.broken.empty() ? 0 : 4;
}

result<soak_shape> shape_of(const trial_options& o) {
  DI_TRY(const auto t, launch::load_topology(o.topology, o.sets));
  soak_shape s;
  s.ranks = t.ep;
  s.nodes = static_cast<std::uint32_t>(t.nodes.size());
  return s;
}

int soak(const soak_words& w) {
  const auto shape = shape_of(w.trial);
  if (!shape.ok()) {
    std::fprintf(stderr, "%s\n", shape.error().what.c_str());
    return 2;
  }
  return many(w, [&](std::uint32_t round, double seconds, const tally&) -> std::optional<plan> {
    const bool more = w.rounds > 0 ? round < w.first_round + w.rounds : seconds < w.minutes * 60;
    return more ? std::optional{draw_plan(w.seed, round, *shape)} : std::nullopt;
  });
}

int cycles(const soak_words& w) {
  return many(w, [&](std::uint32_t round, double, const tally& t) -> std::optional<plan> {
    if (t.struck >= w.count || (round > w.first_round && t.verdicts.back().faults.empty()))
      return std::nullopt;
    return cycle_plan(w.seed, round, w.count - static_cast<std::uint32_t>(t.struck));
  });
}

void add_common(CLI::App* c, const std::shared_ptr<soak_words>& w) {
  c->add_option("--topology", w->trial.topology, "As for dilaunch run")
      ->required()
      ->option_text("FILE");
  c->add_option("--set", w->trial.sets, "Override a topology key")
      ->option_text("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  c->add_option("--dilaunch", w->trial.dilaunch, "The program; default: beside this one")
      ->option_text("FILE");
  c->add_option("--seed", w->seed, "Of plans and workloads; default 1");
  c->add_option("--round", w->first_round, "The first round; default 0");
  c->add_option("--json", w->json, "Write the tally here too")->option_text("FILE");
  c->add_option("--cache", w->trial.cache, "Keep answers of undisturbed runs here")
      ->option_text("FOLDER");
  c->add_option("--keep", w->trial.keep, "Keep logs and answers here")->option_text("FOLDER");
  c->add_flag("--print", w->print, "Print the plans");
  c->add_flag("--verbose", w->trial.verbose, "The runs' logs on stderr");
}

} // namespace

void add_soak_commands(CLI::App& app, int& exit_code) {
  const auto w = std::make_shared<soak_words>();
  auto* s = app.add_subcommand("soak", "Random faults from a seed, round after round");
  add_common(s, w);
  s->add_option("--minutes", w->minutes, "No new round after it; default 1");
  s->add_option("--rounds", w->rounds, "So many rounds instead of --minutes");
  s->callback([w, &exit_code] { exit_code = soak(*w); });

  const auto c = std::make_shared<soak_words>();
  auto* cycle = app.add_subcommand("cycles", "Kill a rank whenever the group is whole");
  add_common(cycle, c);
  cycle->add_option("--count", c->count, "Kills; default 200");
  cycle->callback([c, &exit_code] { exit_code = cycles(*c); });
}

} // namespace di::chaos
