// SPDX-License-Identifier: Apache-2.0
// Options of `dichaos sim --device cost`.
#include "chaos/commands.hpp"
#include "chaos/cost_command.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace di::chaos {

std::function<int(const std::string& ranks)> add_cost_options(CLI::App& sim) {
  auto c = std::make_shared<cost_command>();
  const char* const group = "With --device cost";
  auto& o = c->options;
  sim.add_option("--table", c->table, "Measured costs, of tests/bench/cost_table.py")->group(group);
  sim.add_flag("--calibrate", c->calibrate, "Fit the costs of mail to the table's real runs")
      ->group(group);
  sim.add_option("--csv", c->csv, "File for the results; standard output without")->group(group);
  sim.add_option("--plot", c->plot, "File for a picture (SVG)")->group(group);
  sim.add_option("--sequences", o.load.sequences_per_rank, "Of each rank")->group(group);
  sim.add_option("--prompt", o.load.prompt_tokens, "Tokens of each prompt")->group(group);
  sim.add_option("--output", o.load.output_tokens, "Tokens of each answer")->group(group);
  sim.add_option("--ranks-per-host", o.ranks_per_host, "0: all on one host")->group(group);
  sim.add_option("--cores", o.host_cores, "Processors of each host")->group(group);
  sim.add_option("--skew", o.skew, "Popularity of experts: rank^-skew")->group(group);
  sim.add_option("--redundant", o.redundant, "Expert slots beyond one each")->group(group);
  sim.add_flag("--rebalance", o.rebalance, "Move experts by load")->group(group);
  sim.add_option("--latency-us", c->latency_us, "Between processes; the table's without")
      ->group(group);
  return [c](const std::string& ranks) {
    c->ranks = ranks;
    return run_cost_command(*c);
  };
}

} // namespace di::chaos
