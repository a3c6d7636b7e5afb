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

  /// The prompts again, as the control process will read them. @errors io_error, limit_exceeded
  result<std::string> read_prompts() const;
  /// Where whole lines of answers go that the launcher passes on: standard output, or an output
  /// that is no regular file.
  int lines_to() const noexcept;
  /// Keeps the run directory of a killed run, which others would remove, as long as this lives.
  void hold_abandoned(const std::string& run_dir);

  /// Opens a file for the rings of a trace. While the run goes on they are kept beside `path`,
  /// which stays as it was until end_trace(); a pipe or device gets them at once.
  /// @errors io_error, bad_argument (the file of the prompts or of the answers)
  result<std::string> open_trace(const std::string& path);
  /// Where the rings are; empty: in a pipe or device, or nowhere.
  const std::string& rings() const noexcept { return rings_; }
  /// Puts the rings in the trace's place, or drops them. @errors io_error
  result<void> end_trace(bool keep);

private:
  result<void> open_prompts(const std::string& path);

  unique_fd prompts_, output_, trace_, abandoned_;
  bool output_is_file_ = false;
  unique_fd copy_;                 ///< of a regular file on standard input
  std::string trace_path_, rings_; ///< where the trace goes, and where it is until then
  bool trace_is_new_ = false;      ///< there was no file before
};

/// Opens /dev/null on those of the descriptors 0, 1, 2 that are closed, so that no other file takes
/// their place. @return whether standard output was open
bool fill_standard_descriptors();

} // namespace di::launch
