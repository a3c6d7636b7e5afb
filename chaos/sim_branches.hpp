// SPDX-License-Identifier: Apache-2.0
// Rare branches that the simulation must come by: every reached("…") of what it runs.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace di::sim {

/// Names of all of them, ascending.
std::span<const std::string_view> branches();

struct branch_report {
  std::string words;         ///< a line per branch: its visits, and those never reached
  std::uint32_t never = 0;   ///< known, but not visited
  std::uint32_t unknown = 0; ///< visited, but missing in the table: an error
};
branch_report tell_branches(const std::map<std::string, std::uint64_t>& visits);

} // namespace di::sim
