// SPDX-License-Identifier: Apache-2.0
// What an HTTP server is started with: where it listens, its bounds, its patience, its certificate.
#pragma once

#include "messaging/base/result.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace di::http {

/// Bounds on what one client may send and hold. A count of 0 refuses everything; there is no
/// "unlimited".
struct limits {
  /// [bytes] of request line and header fields, and of trailers: more is answered with 431.
  std::size_t header_bytes = 64u << 10;
  /// Header fields of one request: more is answered with 431.
  std::size_t header_fields = 200;
  /// [bytes] of the request target: more is answered with 414.
  std::size_t target_bytes = 8u << 10;
  /// [bytes] of a body: more is answered with 413; a longer Content-Length before any of it is
  /// read.
  std::size_t body_bytes = 32u << 20;
  /// [bytes] of all bodies under way of one server: more is answered with 503.
  std::size_t all_bodies_bytes = 1u << 30;
  /// [bytes] read ahead while an answer is under way (pipelined requests); then reading pauses.
  std::size_t read_ahead_bytes = 64u << 10;
  /// [bytes] of a stream that wait for a slow reader before write() says `full`; at twice that it
  /// refuses.
  std::size_t client_buffer_bytes = 256u << 10;
  /// Open connections of one server. At the bound the longest idle one is closed; if none is idle,
  /// accepting pauses (the backlog and other processes at the same descriptor take over).
  std::size_t connections = 4096;
  /// [bytes/s] that a body must arrive with after `timeouts::body` has passed (slow-loris).
  std::size_t body_bytes_per_s = 8u << 10;
};

/// How long the server waits. All are upper bounds, checked with one timer per connection.
struct timeouts {
  /// First byte of a request to the end of its header (also the TLS handshake): 408, or a silent
  /// close if no byte came.
  std::chrono::milliseconds header{10'000};
  /// End of the header to the end of the body, plus received bytes / limits::body_bytes_per_s: 408.
  std::chrono::milliseconds body{30'000};
  /// Open and between requests: closed.
  std::chrono::milliseconds idle{75'000};
  /// Bytes are queued and the client takes none: aborted.
  std::chrono::milliseconds write{30'000};
  /// After a closing answer: how long what the client still sends is thrown away, so that it reads
  /// the answer instead of a reset.
  std::chrono::milliseconds linger{1'000};
};

/// PEM files. Empty: plain HTTP.
struct tls_files {
  std::string certificate; ///< chain, own certificate first
  std::string key;
  bool empty() const noexcept { return certificate.empty() && key.empty(); }
};

struct options {
  /// Listening sockets made by others (listen_on() in this or another process). Duplicated, so the
  /// caller keeps its own. Several processes may accept on one.
  std::vector<int> listening;
  /// Where to listen if `listening` is empty: a name or address, and a port (0: any free one).
  std::string host = "localhost";
  std::uint16_t port = 0;
  /// Threads that read, write and call the handler. A connection stays on one.
  unsigned threads = 1;
  tls_files tls;
  http::limits limits;
  http::timeouts timeouts;
  /// POST, PUT and PATCH without Content-Length and Transfer-Encoding are answered with 411. Off:
  /// they have an empty body (RFC 9112 6.3), and request::length_given is false.
  bool length_required = false;
};

/// Listening sockets of one name: one per address it resolves to ("localhost": IPv4 and IPv6 where
/// the host has them), all with the same port. The caller closes them.
struct listeners {
  std::vector<int> descriptors;
  std::uint16_t port = 0;
};

/// Binds and listens; close-on-exec, non-blocking, SO_REUSEADDR. `*` means every address.
/// @errors bad_argument: no such name; io_error: the port is taken or not allowed.
result<listeners> listen_on(const std::string& host, std::uint16_t port, int backlog = 1024);

} // namespace di::http
