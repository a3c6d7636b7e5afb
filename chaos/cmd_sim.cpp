// SPDX-License-Identifier: Apache-2.0
// `dichaos sim`.
#include "chaos/commands.hpp"
#include "chaos/sim_cluster.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include <cstdio>

namespace di::chaos {

namespace {

struct sim_arguments {
  std::string ranks_text = "4", device = "toy";
  std::uint32_t ranks = 4;
  std::uint64_t seed = 0;
  std::string seeds = "1..100", faults = "all";
};

int run(const sim_arguments& a) {
  std::uint64_t first = a.seed, last = a.seed;
  if (a.seed == 0) {
    const auto dots = a.seeds.find("..");
    first = std::stoull(a.seeds);
    last = dots == std::string::npos ? first : std::stoull(a.seeds.substr(dots + 2));
  }
  const auto mask = sim::parse_faults(a.faults);
  if (!mask) {
    std::fprintf(stderr, "dichaos sim: %s\n", mask.error().what.c_str());
    return 2;
  }
  int failed = 0;
  std::uint64_t events = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    sim::cluster_options o;
    o.seed = seed;
    o.ranks = a.ranks;
    o.faults = sim::make_faults(seed, a.ranks, sim::draw_settings(seed, a.ranks).nodes, *mask);
    const auto faults = o.faults;
    const sim::run_outcome got = sim::sim_cluster{std::move(o)}.run();
    events += got.events;
    if (got.failure.empty() && first != last)
      continue;
    failed += !got.failure.empty();
    std::printf("seed %lu: %s\n", static_cast<unsigned long>(seed),
                got.failure.empty() ? "held" : got.failure.c_str());
    for (const sim::fault& f : faults)
      std::printf("    %s\n", sim::words_of(f).c_str());
    std::printf("    %lu events, %.1f s, %lu tokens, %lu views, %lu deaths, hash %016lx\n",
                static_cast<unsigned long>(got.events), got.virtual_s,
                static_cast<unsigned long>(got.tokens), static_cast<unsigned long>(got.views),
                static_cast<unsigned long>(got.deaths), static_cast<unsigned long>(got.hash));
  }
  std::printf("%d of %lu seeds failed, %lu events\n", failed,
              static_cast<unsigned long>(last - first + 1), static_cast<unsigned long>(events));
  return failed == 0 ? 0 : 4;
}

} // namespace

void add_sim_commands(CLI::App& app, int& exit_code) {
  auto* sim = app.add_subcommand("sim", "Run the cores of a cluster on a virtual clock");
  auto a = std::make_shared<sim_arguments>();
  sim->add_option("--ranks", a->ranks_text);
  sim->add_option("--device", a->device, "toy: exact; cost: takes the time that a table says")
      ->check(CLI::IsMember({"toy", "cost"}));
  sim->add_option("--seed", a->seed);
  sim->add_option("--seeds", a->seeds);
  sim->add_option("--faults", a->faults);
  sim->callback([&exit_code, a, costs = add_cost_options(*sim)] {
    if (a->device == "cost") {
      exit_code = costs(a->ranks_text);
      return;
    }
    a->ranks = static_cast<std::uint32_t>(std::stoul(a->ranks_text));
    exit_code = run(*a);
  });
}

} // namespace di::chaos
