// SPDX-License-Identifier: Apache-2.0
// Places where a thread may be made to hang on purpose (messaging/base/probe.hpp arms them).
#pragma once

#include "messaging/base/probe.hpp"

#include <cstdint>
#include <string_view>

namespace di {

/// How a thread hangs.
enum class hang_kind : std::uint8_t {
  spins, ///< computes for ever
  blocks ///< sleeps for ever
};

namespace probe::detail {
[[noreturn]] void hang(std::string_view name, hang_kind how);
} // namespace probe::detail

/// A fault point that is never left once it fires; the log says so before (`hangs_on_purpose`).
inline void hang_point(std::string_view name, hang_kind how) {
  if (fault_point(name))
    probe::detail::hang(name, how);
}

} // namespace di
