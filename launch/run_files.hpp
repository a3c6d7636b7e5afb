// SPDX-License-Identifier: Apache-2.0
// The prompts and the output of `dilaunch run`, opened by the launcher: what a path means is
// decided here, where the user's descriptors are, not in the control process.
#pragma once

#include "launch/boot.hpp"
#include "launch/process.hpp"
#include "messaging/base/result.hpp"

#include <string>

namespace di::launch {

/// Owns the descriptors; the control process opens them again through /proc while this lives.
class run_files {
public:
  /// Opens both before anything is truncated. Pipes, terminals and devices are read to their end
  /// here, so that /dev/stdin and <(...) mean what they mean to the user.
  ///
  /// @param prompts  a path; "-" is standard input
  /// @param output   a path; "-" or empty is standard output
  /// @errors         io_error (with the option and the path), bad_argument (a folder; both are the
  ///                 same regular file), limit_exceeded
  result<batch_boot> open(const std::string& prompts, const std::string& output);

  /// Opens the file for the rings of a trace, empty. @errors io_error
  result<std::string> open_trace(const std::string& path);

private:
  result<void> open_prompts(const std::string& path);

  unique_fd prompts_, output_, trace_;
  unique_fd copy_; ///< of a regular file on standard input
};

/// Opens /dev/null on those of the descriptors 0, 1, 2 that are closed, so that no other file takes
/// their place. @return whether standard output was open
bool fill_standard_descriptors();

} // namespace di::launch
