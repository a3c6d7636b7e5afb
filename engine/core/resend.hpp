// SPDX-License-Identifier: Apache-2.0
// How long to wait before what nobody answered is said again.
#pragma once

#include "messaging/base/env.hpp"

#include <algorithm>
#include <chrono>

namespace di::engine {

inline constexpr duration resend_most = std::chrono::seconds{8}; ///< waits double up to this

/// The wait after `wait`; one that is longer than resend_most stays as it is.
inline duration longer(duration wait) noexcept {
  return std::max(wait, std::min(2 * wait, resend_most));
}

} // namespace di::engine
