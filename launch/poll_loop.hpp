// SPDX-License-Identifier: Apache-2.0
// One thread that waits for descriptors and deadlines: the node process's only loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace di::launch {

/// Calls back when descriptors are readable and when time is up. Owned and used by one thread;
/// callbacks may add and remove anything, themselves included.
class poll_loop {
public:
  using clock = std::chrono::steady_clock;

  /// Calls `ready` whenever `fd` is readable or hung up. Replaces an earlier watch of it.
  void watch(int fd, std::function<void()> ready);
  void forget(int fd);
  /// Calls `due` once, not before `when`.
  /// @return a number for cancel(), never 0
  std::uint64_t at(clock::time_point when, std::function<void()> due);
  void cancel(std::uint64_t number);

  /// Runs callbacks until stop(), which may come first.
  void run();
  void stop() noexcept { stopped_ = true; }

private:
  struct timer {
    clock::time_point when;
    std::function<void()> due;
  };
  void wait_once();

  std::map<int, std::shared_ptr<std::function<void()>>> watches_;
  std::map<std::uint64_t, timer> timers_;
  std::uint64_t last_timer_ = 0;
  bool stopped_ = false;
};

/// Splits what arrives on a non-blocking descriptor into lines.
class line_reader {
public:
  static constexpr std::size_t line_bytes_max = 1U << 20U; ///< [bytes] a longer line is cut there

  /// Reads what is there and calls `line` for each complete one, without its end.
  /// @return false at the end of the stream, or if it cannot be read; an unfinished last line has
  /// been delivered then
  bool read(int fd, const std::function<void(const std::string&)>& line);

private:
  std::string pending_;
};

} // namespace di::launch
