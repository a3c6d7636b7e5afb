// SPDX-License-Identifier: Apache-2.0
// The output of a run that its control process writes into a pipe: passed on in whole lines, each
// counted, so that a control process that is started again goes on behind them.
#pragma once

#include "launch/process.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace di::launch {

/// Passes lines on from a thread of its own, because whoever reads them may be slow: while it
/// waits, the pipe fills up and the control process waits too. Started and used on one thread.
class output_lines {
public:
  /// @param to  where lines go; must stay open
  explicit output_lines(int to);
  ~output_lines(); ///< as finish() without any time
  output_lines(const output_lines&) = delete;
  output_lines& operator=(const output_lines&) = delete;

  /// Reads from this pipe from now on; its writer is the only one. After close().
  void open(unique_fd from);
  /// The writer has ended: takes what is still in the pipe; part of a line at its end is dropped.
  void close();
  /// Whole lines taken; each of them is out, or will be.
  std::uint64_t lines() const noexcept { return lines_; }
  /// Of them, lines of requests that failed.
  std::uint64_t failed() const noexcept { return failed_; }

  /// Readable once lines cannot be written any more; the pipe is closed then.
  int failure_fd() const noexcept { return failure_.get(); }
  /// Waits until all that was taken is out, at most so long if there is a limit.
  /// @errors cancelled: its reader has gone; io_error; deadline_exceeded
  result<void> finish(std::optional<std::chrono::milliseconds> limit);
  /// What finish() will say of the lines so far. @errors cancelled, io_error
  result<void> outcome() const;

private:
  void run();
  bool read_some();
  void take(std::string_view bytes);
  result<void> write(std::string_view text);

  const int to_;
  unique_fd wake_, failure_;
  mutable std::mutex guard_;
  std::condition_variable ended_;
  unique_fd from_;
  std::string part_;  ///< of a line that is not whole
  std::string whole_; ///< lines on their way
  std::optional<error> broken_;
  bool ending_ = false, abandoned_ = false, done_ = false;
  std::atomic<std::uint64_t> lines_ = 0, failed_ = 0;
  std::thread thread_;
};

/// Lines of an output file that is whole up to there, for a control process that goes on with it.
struct written_lines {
  std::uint64_t lines = 0, failed = 0;
  std::uint64_t bytes = 0; ///< of whole lines
};

/// Counts, and cuts off a part of a line at the end. @errors io_error
result<written_lines> mend_output(int fd, const std::string& name);

/// Does an output line say that its request failed?
bool tells_failure(std::string_view line);

} // namespace di::launch
