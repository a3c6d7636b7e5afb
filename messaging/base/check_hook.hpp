// SPDX-License-Identifier: Apache-2.0
// What happens before a broken check ends the process; for the simulator, which goes on with the
// next run.
#pragma once

#include <string>

namespace di::detail {

/// Called with the words; may throw. Null: nothing. Set before any thread runs.
extern void (*on_check_failed)(const std::string& words);

} // namespace di::detail
