// SPDX-License-Identifier: Apache-2.0
// The control process and the rank process: what runs between exec and exit of a child.
#pragma once

namespace di::launch {

/// Reads the boot configuration from boot_fd, takes the role that it names, reports on status_fd.
/// Call on the main thread of a fresh process. Returns the exit code.
int child_main();

} // namespace di::launch
