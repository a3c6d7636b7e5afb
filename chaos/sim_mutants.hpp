// SPDX-License-Identifier: Apache-2.0
// The mutation proof: bugs that the cores can have on purpose, and how many seeds the simulation
// may need to find each of them.
#pragma once

#include "chaos/sim_run.hpp"

#include <span>
#include <string>
#include <string_view>

namespace di::sim {

struct mutant {
  std::string_view name;  ///< as in planted("…")
  std::uint64_t seeds;    ///< within which it must be caught, from 1
  std::string_view means; ///< what is wrong, in words
  fault_mask faults =
      all_faults;          ///< that seeds may draw: the fewer, the more often those that show it
  std::uint32_t ranks = 0; ///< 0: each seed decides
};

std::span<const mutant> mutants();

struct mutant_outcome {
  std::uint64_t seed = 0; ///< that caught it; 0: none did
  std::string failure;
};

/// Runs seeds until one fails. @pre this program's cores have planted bugs
mutant_outcome hunt(const mutant& m);
/// The cores have this bug from now on; empty: none. @pre as hunt()
void plant(std::string_view name);

} // namespace di::sim
