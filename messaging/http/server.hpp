// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 server: keep-alive, pipelining (answers in order), chunked bodies both ways, TLS.
// It knows no route: every well-formed request goes to one handler.
//
// What it answers by itself, each with a body from the caller's formatter, then closes:
//   400 malformed, smuggling (two lengths, length and chunked), no Host   408 header or body too
//   slow 411 no length (options::length_required)   413 body   414 target   417 unknown expectation
//   431 header   500 the handler threw or dropped the exchange   501 unknown transfer coding
//   503 all bodies together too large   505 not HTTP/1.x (so also the HTTP/2 preface)
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/http/exchange.hpp"
#include "messaging/http/options.hpp"
#include "messaging/http/request.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace di::http {

/// Called on the connection's thread with each whole request. Must not wait: it hands over, or
/// answers at once.
using handler = std::function<void(request, exchange_ptr)>;

/// A request that the server answers by itself.
struct refusal {
  int status = 400;
  std::string code;   ///< snake_case, e.g. "body_too_large"
  std::string detail; ///< one sentence with numbers
  /// As far as it was read: method, target and path may be empty, the headers missing.
  const request* asked = nullptr;
};
/// Makes status, headers and body of a refusal. Without one: text/plain.
using refusal_formatter = std::function<answer(const refusal&)>;

/// Looks at a request before its body is read (and before `100 Continue`); an answer refuses it.
/// Called on the connection's thread; must not wait.
using head_check = std::function<std::optional<answer>(const request& head)>;

struct callbacks {
  http::handler handler;       ///< required
  refusal_formatter format;    ///< optional
  http::head_check check_head; ///< optional
  /// Optional: +1 when a connection opens, -1 when it has closed. Any thread of the server.
  std::function<void(int)> connections{};
};

/// Since the start, except `open` and `busy`.
struct counts {
  std::uint64_t accepted = 0;
  std::uint64_t open = 0; ///< connections
  std::uint64_t busy = 0; ///< requests at the handler
  std::uint64_t requests = 0;
  std::uint64_t refused = 0;       ///< answered by the server itself
  std::uint64_t timed_out = 0;     ///< 408, or a write that made no progress
  std::uint64_t gone = 0;          ///< clients that left before their answer was out
  std::uint64_t accept_errors = 0; ///< EMFILE and the like; accepting goes on after a pause
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
};

class server {
public:
  /// Listens, starts the threads. @errors bad_argument, io_error (address), bad_config (TLS files).
  static result<std::unique_ptr<server>> start(options opt, callbacks calls);

  /// Like stop(0 ms).
  ~server();
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  std::uint16_t port() const;
  http::counts count() const;

  /// Closes the listening sockets of this server. Connections go on.
  void stop_accepting();
  /// stop_accepting(), closes idle connections; every answer from now on closes its connection.
  void drain();
  /// drain(), waits until all connections have ended or the deadline has passed, aborts the rest,
  /// ends the threads. True if nothing had to be aborted. Not from a callback. Later calls: true.
  bool stop(std::chrono::milliseconds deadline);

  /// New connections get the new certificate. On an error the old one stays.
  result<void> reload_tls(const tls_files& files);
  /// New connections get the new bounds; `limits::connections` counts at once.
  void reload(const limits& l, const timeouts& t);

private:
  struct impl;
  explicit server(std::unique_ptr<impl> i);
  std::unique_ptr<impl> impl_;
};

} // namespace di::http
