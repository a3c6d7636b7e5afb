// SPDX-License-Identifier: Apache-2.0
// Waits for many ZeroMQ sockets at the price of those that have something: their descriptors stay
// registered with epoll. zmq_poll asks every socket twice per wait, which with 64 peers costs more
// than the mail.
//
// The descriptor of a socket is readable while it has commands of ZeroMQ's own threads to take in;
// any receive that finds nothing, any send, and settle() take them in. Messages may be there while
// it is not readable: whoever stops receiving early must come back by himself.
#pragma once

#include "messaging/base/result.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace di::bus {

/// Used on one thread.
class socket_poll {
public:
  socket_poll();
  ~socket_poll();
  socket_poll(const socket_poll&) = delete;
  socket_poll& operator=(const socket_poll&) = delete;

  explicit operator bool() const noexcept { return epoll_ >= 0; }
  /// Registers a ZeroMQ socket, once; `key` comes back from wait(). @errors limit_exceeded
  result<void> add(void* zmq_socket, std::uint64_t key);
  result<void> add_descriptor(int fd, std::uint64_t key);
  /// Before the socket is closed; nothing if it was not registered.
  void remove(void* zmq_socket);

  /// Keys of sockets that have something, valid until the next call. None: `timeout` is over.
  const std::vector<std::uint64_t>& wait(std::chrono::nanoseconds timeout);

  /// Takes in the commands that wait for a socket; true if it can send now.
  static bool settle(void* zmq_socket) noexcept;

private:
  int epoll_ = -1;
  std::unordered_map<void*, int> descriptors_;
  std::vector<std::uint64_t> ready_;
};

} // namespace di::bus
