// SPDX-License-Identifier: Apache-2.0
// Decides which CURVE keys may connect: ZeroMQ asks over a socket inside the process (its RFC 27),
// the bus thread answers. Without it CURVE would encrypt for anyone.
#pragma once

#include "messaging/bus/zmq_socket.hpp"

#include <cstdint>
#include <mutex>
#include <set>
#include <string>

namespace di::bus {

class zap_handler {
public:
  /// Bus thread, before any CURVE socket is bound.
  result<void> start(void* context);
  void stop() noexcept { socket_.close(); }
  void* raw() const noexcept { return socket_.raw(); }
  /// Answers all waiting questions; gives how many keys were refused.
  std::uint64_t serve();

  /// Any thread. `public_key`: Z85.
  void allow(const std::string& public_key);

private:
  bool knows(std::span<const std::byte> key) const;

  socket socket_;
  mutable std::mutex guard_;
  std::set<std::string> allowed_;
};

} // namespace di::bus
