// SPDX-License-Identifier: Apache-2.0
// A thread for what would hold up all the connections of an HTTP thread: large bodies are parsed
// and tokenized here, one after the other.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace di::serve {

/// One thread, started with the first work. What waits at the end is dropped. The queue is bounded
/// by the bytes of the bodies in it.
class side_worker {
public:
  side_worker() = default;
  ~side_worker();
  side_worker(const side_worker&) = delete;
  side_worker& operator=(const side_worker&) = delete;

  /// [bytes] of bodies that may wait and be worked on.
  static constexpr std::size_t bytes_max = 512u << 20;

  /// Any thread. False, and nothing happens, if the bytes do not fit beside those that wait.
  /// @param bytes  of the body that the work holds
  bool add(std::size_t bytes, std::function<void()> work);

private:
  void run();

  std::mutex guard_;
  std::condition_variable wake_;
  struct task {
    std::size_t bytes;
    std::function<void()> work;
  };
  std::deque<task> waiting_;
  std::size_t bytes_ = 0; ///< of what waits and of what is worked on
  bool stop_ = false;
  std::thread thread_;
};

} // namespace di::serve
