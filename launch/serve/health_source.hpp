// SPDX-License-Identifier: Apache-2.0
// What the health routes ask: the gateway process answers from what control told it.
#pragma once

#include <cstdint>
#include <string>

namespace di::serve {

/// How the cluster behind this gateway stands.
struct health_state {
  bool started = false;  ///< loading is over, for good
  bool ready = false;    ///< a request would be served now; false while it drains
  bool draining = false; ///< a termination was asked for
  double progress = 0;   ///< [0, 1] of start-up
  std::string phase;     ///< one word or two: "loading", "serving", "draining"
  std::string why;       ///< why not ready; empty if it is
  std::uint32_t ranks = 0, ranks_ready = 0;
  std::string contract; ///< contract id of the ranks; empty until known
};

/// Any thread; must not block.
class health_source {
public:
  virtual ~health_source() = default;
  virtual health_state health() const = 0;
};

} // namespace di::serve
