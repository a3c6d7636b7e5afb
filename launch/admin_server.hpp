// SPDX-License-Identifier: Apache-2.0
// The operator's door of a run: a unix socket in the run directory of node 0, one JSON object a
// line.
#pragma once

#include "launch/poll_loop.hpp"
#include "launch/process.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace di::launch {

inline constexpr const char* admin_socket_name = "admin.sock";

/// Listens at <run dir>/admin.sock (mode 0600; other users are turned away). Used on the loop's
/// thread. A connection sends one line and gets lines until it is closed.
class admin_server {
public:
  static constexpr std::size_t connections_max = 64;
  static constexpr std::size_t reply_bytes_max = 4U << 20U; ///< waiting for a slow reader

  struct events {
    std::function<void(std::uint64_t connection, const std::string& line)> line;
    std::function<void(std::uint64_t connection)> gone; ///< before it got its last line
  };

  /// @errors io_error
  static result<std::unique_ptr<admin_server>> make(poll_loop& loop, const std::string& run_dir,
                                                    events on);
  ~admin_server();
  admin_server(const admin_server&) = delete;
  admin_server& operator=(const admin_server&) = delete;

  /// A line for a connection; unknown ones are ignored. `last`: then close it.
  void reply(std::uint64_t connection, const std::string& line, bool last);

private:
  struct client {
    unique_fd fd;
    line_reader lines;
    std::string out; ///< not sent yet
    bool asked = false, closing = false;
  };
  admin_server(poll_loop& loop, events on) : loop_{loop}, on_{std::move(on)} {}
  void accept();
  void read(std::uint64_t number);
  void flush(std::uint64_t number);
  void drop(std::uint64_t number);

  poll_loop& loop_;
  events on_;
  unique_fd listener_;
  std::string path_;
  std::map<std::uint64_t, std::unique_ptr<client>> clients_;
  std::uint64_t last_ = 0;
};

/// An answer that says why there is none. `code`: name of an error code, e.g. unavailable.
std::string admin_error(std::string_view code, std::string_view what);

} // namespace di::launch
