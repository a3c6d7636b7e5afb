// SPDX-License-Identifier: Apache-2.0
// A verdict for people and for programs, next to what others publish.
#pragma once

#include "chaos/verdict.hpp"

#include <string>
#include <vector>

namespace di::chaos {

/// What stands at the head of a report.
struct report_facts {
  std::string plan, topology, commit, machine;
  std::uint32_t ranks = 0;
  std::uint64_t seed = 0;
  std::vector<std::string> covers;
};

/// One JSON object, several lines.
std::string to_json(const report_facts& facts, const verdict& v);
/// At most a page of text.
std::string to_text(const report_facts& facts, const verdict& v);
/// Quantiles over all faults of all verdicts.
std::string figures_json(const std::vector<verdict>& all);
/// Figures of peers and targets beside ours; `all` are verdicts of any plans.
std::string peers_table(const std::vector<verdict>& all);

} // namespace di::chaos
