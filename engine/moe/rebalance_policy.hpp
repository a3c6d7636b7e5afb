// SPDX-License-Identifier: Apache-2.0
// When experts may move, and how far at a time.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdint>
#include <string_view>

namespace di::engine {

enum class rebalance_mode : std::uint8_t {
  off,       ///< experts move only for other views and slow ranks
  automatic, ///< by load
  forced,    ///< random placements every few steps: a test of everything that moves experts
};

struct rebalance_policy {
  rebalance_mode mode = rebalance_mode::off;
  std::uint32_t window_steps = 128;   ///< [steps] that ranks count before they report
  std::uint32_t bins = 4;             ///< parts of a window
  std::uint32_t interval_steps = 512; ///< [steps] of the busiest rank between two plans
  std::uint32_t moves_max = 256;      ///< [slots] that one plan loads
  std::uint32_t epoch_moves = 64;     ///< [slots] loaded per epoch; a layer switches as a whole
  double gain_min = 0.03;             ///< share of the peak rows that a plan must save
  double begin_above = 1.10;          ///< [moe_lb] planning begins above this ...
  double end_below = 1.05;            ///< ... and goes on until below this, or no plan gains enough
  std::uint64_t seed = 1;             ///< of forced placements
};

/// Reads `off`, `observe`, `auto`, `forced` or `forced:STEPS`. @errors bad_config
result<rebalance_policy> parse_rebalance(std::string_view text);

} // namespace di::engine
