// SPDX-License-Identifier: Apache-2.0
// The private directory of one run: sockets and logs. Removed at its end; what a killed run left is
// removed by the next one.
#pragma once

#include "launch/process.hpp"
#include "messaging/base/result.hpp"

#include <string>
#include <vector>

namespace di::launch {

/// A directory di-<uid>-<random> of mode 0700 under $XDG_RUNTIME_DIR, or /tmp where that is unset,
/// not ours or too long for socket names. It is locked while in use.
class run_dir {
public:
  /// Makes a directory; first sweeps those of the same user that nobody holds.
  /// @errors io_error
  static result<run_dir> make();

  /// Paths of the directories of this user, whether their runs live or not.
  static std::vector<std::string> all();

  run_dir(run_dir&&) noexcept = default;
  run_dir& operator=(run_dir&&) noexcept = default;
  ~run_dir();

  const std::string& path() const noexcept { return path_; }

private:
  run_dir() = default;
  std::string path_;
  unique_fd lock_;
};

} // namespace di::launch
