// SPDX-License-Identifier: Apache-2.0
#include "messaging/bus/socket_poll.hpp"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/epoll.h>
#include <unistd.h>

namespace di::bus {

socket_poll::socket_poll() : epoll_{::epoll_create1(EPOLL_CLOEXEC)} {
}

socket_poll::~socket_poll() {
  if (epoll_ >= 0)
    ::close(epoll_);
}

result<void> socket_poll::add_descriptor(int fd, std::uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0)
    return fail(ec::limit_exceeded, "cannot wait for descriptor {}: {}", fd, std::strerror(errno));
  return {};
}

result<void> socket_poll::add(void* zmq_socket, std::uint64_t key) {
  if (descriptors_.contains(zmq_socket))
    return {};
  int fd = -1;
  std::size_t size = sizeof fd;
  if (zmq_getsockopt(zmq_socket, ZMQ_FD, &fd, &size) != 0)
    return fail(ec::limit_exceeded, "no descriptor of a socket: {}", zmq_strerror(zmq_errno()));
  DI_TRY_VOID(add_descriptor(fd, key));
  descriptors_.emplace(zmq_socket, fd);
  return {};
}

void socket_poll::remove(void* zmq_socket) {
  const auto at = descriptors_.find(zmq_socket);
  if (at == descriptors_.end())
    return;
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, at->second, nullptr);
  descriptors_.erase(at);
}

const std::vector<std::uint64_t>& socket_poll::wait(std::chrono::nanoseconds timeout) {
  std::array<epoll_event, 256> events{};
  // Rounded up: waking a moment late is better than a turn for nothing.
  const auto ms = std::clamp<std::int64_t>((timeout.count() + 999'999) / 1'000'000, 0, 1 << 30);
  const int n =
      ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), static_cast<int>(ms));
  ready_.clear();
  for (int i = 0; i < n; ++i)
    ready_.push_back(events[static_cast<std::size_t>(i)].data.u64);
  return ready_;
}

bool socket_poll::settle(void* zmq_socket) noexcept {
  int events = 0;
  std::size_t size = sizeof events;
  return zmq_getsockopt(zmq_socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLOUT) != 0;
}

} // namespace di::bus
