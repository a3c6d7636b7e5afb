// SPDX-License-Identifier: Apache-2.0
// A thread for what would hold up all the connections of an HTTP thread: large bodies are parsed
// and tokenized here, one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace di::serve {

/// One thread, started with the first work. What waits at the end is dropped. The queue is bounded
/// by the requests that admission lets in.
class side_worker {
public:
  side_worker() = default;
  ~side_worker();
  side_worker(const side_worker&) = delete;
  side_worker& operator=(const side_worker&) = delete;

  /// Any thread.
  void add(std::function<void()> work);

private:
  void run();

  std::mutex guard_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
  bool stop_ = false;
  std::thread thread_;
};

} // namespace di::serve
