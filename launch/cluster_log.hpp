// SPDX-License-Identifier: Apache-2.0
// What the processes of a run say: prefixed on stderr, kept in one file each.
#pragma once

#include "launch/log_writer.hpp"
#include "messaging/base/result.hpp"

#include <string>
#include <unistd.h>

namespace di::launch {

/// Used by one thread, which never waits for who reads standard error, or for a disk.
class cluster_log {
public:
  explicit cluster_log(bool quiet) : quiet_{quiet} {}

  /// Keeps lines in `<folder>/<process>.log` from now on; makes the folder. @errors io_error
  result<void> keep(const std::string& folder);
  /// One line of a process: "[rank 3] text".
  void line(const std::string& process, const std::string& text);
  /// One line of the launcher itself.
  void note(const std::string& text);
  /// One line to the user, --quiet or not.
  void tell(const std::string& text);
  /// The last line of all: why the run ended.
  void last(const std::string& reason) { tell(reason); }
  /// Waits until all is written, or nobody takes it; nothing is after it.
  void finish() { writer_.finish(log_writer::patience); }

private:
  bool quiet_;
  std::string folder_;
  log_writer writer_{STDERR_FILENO};
};

} // namespace di::launch
