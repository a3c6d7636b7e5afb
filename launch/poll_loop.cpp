// SPDX-License-Identifier: Apache-2.0
// poll(2) with timers.
#include "launch/poll_loop.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <poll.h>
#include <unistd.h>
#include <utility>

namespace di::launch {

void poll_loop::watch(int fd, std::function<void()> ready) {
  watches_[fd] = std::make_shared<std::function<void()>>(std::move(ready));
}

void poll_loop::forget(int fd) {
  watches_.erase(fd);
}

std::uint64_t poll_loop::at(clock::time_point when, std::function<void()> due) {
  timers_[++last_timer_] = {when, std::move(due)};
  return last_timer_;
}

void poll_loop::cancel(std::uint64_t number) {
  timers_.erase(number);
}

void poll_loop::run() {
  while (!stopped_)
    wait_once();
}

void poll_loop::wait_once() {
  std::vector<pollfd> fds;
  fds.reserve(watches_.size());
  for (const auto& [fd, ready] : watches_)
    fds.push_back({fd, POLLIN, 0});
  auto timeout = std::chrono::milliseconds{60'000};
  const auto now = clock::now();
  for (const auto& [number, t] : timers_) {
    // Rounded up: a timer is never early.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(t.when - now);
    timeout = std::clamp(left, std::chrono::milliseconds{0}, timeout);
  }
  if (::poll(fds.data(), fds.size(), static_cast<int>(timeout.count())) < 0)
    return; // EINTR: look again
  for (const auto& p : fds) {
    if (p.revents == 0)
      continue;
    const auto found = watches_.find(p.fd);
    if (found == watches_.end())
      continue; // removed by a callback of this round
    const auto ready = found->second;
    (*ready)();
    if (stopped_)
      return;
  }
  const auto later = clock::now();
  std::vector<std::uint64_t> due;
  for (const auto& [number, t] : timers_)
    if (t.when <= later)
      due.push_back(number);
  for (const auto number : due) {
    const auto found = timers_.find(number);
    if (found == timers_.end())
      continue;
    const auto call = std::move(found->second.due);
    timers_.erase(found);
    call();
    if (stopped_)
      return;
  }
}

bool line_reader::read(int fd, const std::function<void(const std::string&)>& line) {
  std::array<char, 16384> block{};
  while (true) {
    const auto n = ::read(fd, block.data(), block.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && errno == EAGAIN)
      return true; // nothing more for now
    if (n <= 0) {  // the end, or an error after which nothing comes any more
      if (!pending_.empty())
        line(std::exchange(pending_, {}));
      return false;
    }
    pending_.append(block.data(), static_cast<std::size_t>(n));
    std::size_t start = 0;
    for (auto end = pending_.find('\n'); end != std::string::npos;
         end = pending_.find('\n', start)) {
      line(pending_.substr(start, end - start));
      start = end + 1;
    }
    pending_.erase(0, start);
    while (pending_.size() > line_bytes_max) {
      line(pending_.substr(0, line_bytes_max));
      pending_.erase(0, line_bytes_max);
    }
  }
}

} // namespace di::launch
