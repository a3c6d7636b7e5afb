// SPDX-License-Identifier: Apache-2.0
// Seeds: each runs twice and must give the same trace, a failing one is shrunk and drawn.
#pragma once

#include "chaos/sim_cluster.hpp"

#include <string>
#include <vector>

namespace di::sim {

struct seed_setting {
  std::uint64_t seed = 1;
  std::uint32_t ranks = 0; ///< 0: the seed decides, 3 to 128, mostly few
  fault_mask kinds = all_faults;
  bool twice = true;
};

struct seed_report {
  std::uint64_t seed = 1;
  std::uint32_t ranks = 0;
  std::vector<fault> faults;
  run_outcome outcome; ///< failure I20: the second run took another way
};

/// Ranks of a seed when it may choose.
std::uint32_t ranks_of(std::uint64_t seed) noexcept;
seed_report run_seed(const seed_setting& s);
/// Faults without which the run would not fail as it does (with the same invariant).
/// @pre report.outcome.failure is not empty
std::vector<fault> shrink(const seed_report& report);
/// The end of a run as a chart.
std::string chart_of(const seed_report& report, std::size_t lines, bool everything);
/// Words for people: what failed, with which faults, how to see it again.
std::string words_of(const seed_report& report);
/// Broken checks of cores become failures of a run from now on, instead of ending the process;
/// cores log nothing.
void catch_checks();

} // namespace di::sim
