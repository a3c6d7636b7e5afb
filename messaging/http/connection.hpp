// SPDX-License-Identifier: Apache-2.0
// The shell of one connection: socket, TLS, timer. It reads, writes and waits as its core wishes.
#pragma once

#include "messaging/http/connection_core.hpp"
#include "messaging/http/tls.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

namespace boost::asio {
class io_context;
}

namespace di::http {

/// Belongs to the thread of its loop; every call comes from there.
class connection {
public:
  virtual ~connection() = default;
  /// Finishes what is under way, then closes.
  virtual void drain() = 0;
  /// Closes if it is idle.
  virtual void shed() = 0;
  /// Closes now.
  virtual void abort() = 0;
  /// Since when it has had nothing to do; nullopt if it is busy or just opened.
  virtual std::optional<std::chrono::steady_clock::time_point> idle_since() const = 0;
};

/// Serves an accepted, non-blocking socket, which it owns from now on.
/// @param tls null: plain HTTP
/// @param ended called once when it has closed
std::shared_ptr<connection> open_connection(boost::asio::io_context& loop, int socket,
                                            connection_setup setup, const tls_context& tls,
                                            std::function<void()> ended);

} // namespace di::http
