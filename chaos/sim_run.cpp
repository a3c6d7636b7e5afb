// SPDX-License-Identifier: Apache-2.0
// Running, shrinking and telling.
#include "chaos/sim_run.hpp"

#include "chaos/sim_chart.hpp"
#include "messaging/base/check_hook.hpp"
#include "messaging/base/log.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace di::sim {

namespace {

run_outcome run_once(std::uint64_t seed, std::uint32_t ranks, const std::vector<fault>& faults) {
  cluster_options o;
  o.seed = seed;
  o.ranks = ranks;
  o.faults = faults;
  try {
    return sim_cluster{std::move(o)}.run();
  } catch (const std::exception& e) { // outside any handler
    run_outcome broken;
    broken.failure = e.what();
    return broken;
  }
}

std::string_view name_of(std::string_view failure) {
  return failure.substr(0, failure.find(':'));
}

} // namespace

void catch_checks() {
  log::set_level(log::level::off);
  detail::on_check_failed = [](const std::string& words) { throw std::runtime_error{words}; };
}

std::uint32_t ranks_of(std::uint64_t seed) noexcept {
  sim_random r = sim_random{seed}.fork(9);
  const std::uint64_t dice = r.below(100);
  if (dice < 85)
    return static_cast<std::uint32_t>(r.between(3, 8));
  if (dice < 97)
    return static_cast<std::uint32_t>(r.between(9, 24));
  return dice < 99 ? 64 : 128;
}

seed_report run_seed(const seed_setting& s) {
  seed_report report;
  report.seed = s.seed;
  report.ranks = s.ranks != 0 ? s.ranks : ranks_of(s.seed);
  report.faults =
      make_faults(s.seed, report.ranks, draw_settings(s.seed, report.ranks).nodes, s.kinds);
  report.outcome = run_once(s.seed, report.ranks, report.faults);
  if (s.twice && report.outcome.failure.empty()) {
    const run_outcome again = run_once(s.seed, report.ranks, report.faults);
    if (again.hash != report.outcome.hash)
      report.outcome.failure = fmt::format("I20: the same seed took two ways: {:016x}, {:016x}",
                                           report.outcome.hash, again.hash);
  }
  return report;
}

std::vector<fault> shrink(const seed_report& report) {
  std::vector<fault> left = report.faults;
  const std::string wanted{name_of(report.outcome.failure)};
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < left.size(); ++i) {
      std::vector<fault> fewer = left;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      if (name_of(run_once(report.seed, report.ranks, fewer).failure) == wanted) {
        left = std::move(fewer);
        changed = true;
        break;
      }
    }
  }
  return left;
}

std::string chart_of(const seed_report& report, std::size_t lines, bool everything) {
  cluster_options o;
  o.seed = report.seed;
  o.ranks = report.ranks;
  o.faults = report.faults;
  sim_cluster cluster{std::move(o)};
  sim_chart chart{cluster.world(), lines, everything};
  cluster.world().observe(&chart);
  try {
    (void)cluster.run();
  } catch (const std::exception&) { // the chart shows how far it went
  }
  return chart.render();
}

std::string words_of(const seed_report& report) {
  const run_outcome& got = report.outcome;
  std::string words = fmt::format("seed {}, {} ranks: {}\n", report.seed, report.ranks,
                                  got.failure.empty() ? "held" : got.failure);
  for (const fault& f : report.faults)
    words += "    " + words_of(f) + "\n";
  return words
         + fmt::format("    {} events, {:.1f} s, {} tokens, {} views, {} deaths, {} joins, {} "
                       "frames, {} lost, trace {:016x}\n",
                       got.events, got.virtual_s, got.tokens, got.views, got.deaths, got.joins,
                       got.frames, got.lost, got.hash);
}

} // namespace di::sim
