// SPDX-License-Identifier: Apache-2.0
// The loop of the thread beside the HTTP threads.
#include "launch/serve/side_worker.hpp"

#include <utility>

namespace di::serve {

side_worker::~side_worker() {
  {
    const std::scoped_lock lock{guard_};
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable())
    thread_.join();
}

bool side_worker::add(std::size_t bytes, std::function<void()> work) {
  const std::scoped_lock lock{guard_};
  if (bytes_ > 0 && bytes > bytes_max - bytes_)
    return false;
  bytes_ += bytes;
  waiting_.push_back({bytes, std::move(work)});
  if (!thread_.joinable())
    thread_ = std::thread{[this] { run(); }};
  wake_.notify_one();
  return true;
}

void side_worker::run() {
  std::unique_lock lock{guard_};
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_)
      return;
    auto next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    next.work();
    next.work = nullptr; // what it holds goes before the lock is taken
    lock.lock();
    bytes_ -= next.bytes;
  }
}

} // namespace di::serve
