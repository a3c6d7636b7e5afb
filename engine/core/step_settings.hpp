// SPDX-License-Identifier: Apache-2.0
// How a rank runs its steps, as the topology says. None of it changes a token.
#pragma once

#include "engine/core/speculation_choice.hpp"

#include <cstdint>

namespace di::engine {

struct step_settings {
  speculation_choice speculation;    ///< of requests that do not choose themselves
  std::uint32_t steps_in_flight = 2; ///< 1: nothing of a step overlaps the next one
  double step_ms = 0;                ///< [ms] prompt chunks are cut to fit; 0: by rows alone
  double profile_ms = 0;             ///< [ms] for timing dummy steps at start, with varlen; 0: none
  std::uint64_t snapshot_bytes = 0;  ///< [bytes] of window snapshots kept; 0: none
};

} // namespace di::engine
