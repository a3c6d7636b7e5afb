// SPDX-License-Identifier: Apache-2.0
// How a thread hangs on purpose.
#include "messaging/base/hang_point.hpp"

#include "messaging/base/log.hpp"

#include <unistd.h>

namespace di::probe::detail {

void hang(std::string_view name, hang_kind how) {
  log::warn("hangs_on_purpose", {{"point", name}, {"spins", how == hang_kind::spins}});
  for (volatile std::uint64_t turns = 0;;) {
    if (how == hang_kind::spins)
      turns = turns + 1;
    else
      ::pause(); // comes back after a signal that is handled
  }
}

} // namespace di::probe::detail
