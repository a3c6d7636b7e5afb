// SPDX-License-Identifier: Apache-2.0
// Bugs that a test build of the cores can have on purpose, so that a test shows that the simulation
// finds them. In every other build they are not there.
#pragma once

#include <string_view>

namespace di {

namespace planted_bugs {
/// Name of the bug that this process has now; set by the simulator before the cores run.
inline std::string_view active;
} // namespace planted_bugs

#ifdef DI_PLANTED_BUGS
inline namespace with_planted_bugs {
/// True where the core shall do the wrong thing: `if (!planted("no_epoch_check") && stale) return;`
inline bool planted(std::string_view name) noexcept {
  return planted_bugs::active == name;
}
} // namespace with_planted_bugs
#else
inline namespace without_planted_bugs {
constexpr bool planted(std::string_view /*name*/) noexcept {
  return false;
}
} // namespace without_planted_bugs
#endif

} // namespace di
