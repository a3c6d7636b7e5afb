// SPDX-License-Identifier: Apache-2.0
// Log lines on their way to standard error and to files, written by a thread of their own: who does
// not read them, or a disk that is slow, never holds up the loop that watches over the run.
#pragma once

#include "launch/process.hpp"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace di::launch {

/// Started and used on one thread. While more waits than it keeps, the oldest lines are dropped;
/// how many says a line in their place.
class log_writer {
public:
  static constexpr std::chrono::milliseconds patience{5'000};

  /// @param to         descriptor of standard error; must stay open
  /// @param bytes_max  [bytes] kept for it, and as much again for files
  explicit log_writer(int to, std::size_t bytes_max = 8U << 20U);
  ~log_writer() { finish(patience); }
  log_writer(const log_writer&) = delete;
  log_writer& operator=(const log_writer&) = delete;

  /// To standard error; `line` has its end. Never waits.
  void out(std::string line);
  /// To the end of a file, which is made if there is none. Never waits.
  void file(std::string path, std::string line);
  /// Writes what waits, and ends; later lines are dropped. What standard error does not take is
  /// given up once none of it was taken for so long. Waits for files.
  void finish(std::chrono::milliseconds without_progress);

private:
  struct entry {
    std::string path; ///< of a file
    std::string line;
  };
  struct queue {
    std::deque<entry> waiting;
    std::size_t bytes = 0;
    std::uint64_t dropped = 0;
  };
  struct closer {
    void operator()(std::FILE* f) const noexcept { std::fclose(f); }
  };
  void put(queue& into, entry e);
  void run();
  void next_piece();
  bool wait_for_room();
  void write_some();
  void write_files(const std::deque<entry>& lines);

  const int to_;
  const std::size_t bytes_max_;
  unique_fd own_; ///< the same pipe or terminal, not blocking; empty: cannot be opened again
  bool socket_ = false;
  unique_fd wake_;
  std::mutex guard_;
  std::condition_variable moved_;
  queue out_, files_;
  std::uint64_t written_ = 0; ///< [bytes] that standard error took
  bool ending_ = false, abandoned_ = false, done_ = false;
  std::string piece_;   ///< the thread's: on its way to standard error
  bool broken_ = false; ///< the thread's: nobody will read
  std::map<std::string, std::unique_ptr<std::FILE, closer>> open_; ///< the thread's
  std::thread thread_;
};

} // namespace di::launch
