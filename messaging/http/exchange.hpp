// SPDX-License-Identifier: Apache-2.0
// The handle of one request: how any thread answers it, streams to it, and learns that its client
// is gone.
//
//   handler (thread of the connection)          actor's thread
//   ex->on_gone([desk, id](gone) {...});
//   desk.submit(..., listener{ex})        -->   ex->begin_stream(200, sse_headers());
//                                               ex->write(sse_event(json)) ... ex->end();
//
// Every function may be called from any thread at any time, also after the client left; they never
// wait. Callbacks run on the thread of the connection, one at a time, and are dropped once the
// answer has ended (respond, end, abort) or the client is gone; whatever they capture is released
// then. A callback that captures the exchange itself should hold it weakly.
//
// Dropping the last handle without an answer sends a 500; dropping it inside a stream aborts it.
#pragma once

#include "messaging/http/request.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace di::http {

/// Why a client is gone.
enum class gone : std::uint8_t {
  closed,  ///< it closed (or half-closed) its side
  reset,   ///< the connection broke
  stalled, ///< it took no byte for timeouts::write
  stopped, ///< this server stops and its deadline has passed
};
std::string_view to_string(gone why) noexcept;

/// What became of a chunk.
enum class written : std::uint8_t {
  ok,      ///< taken
  full,    ///< taken; but the client is slow: wait for on_drained
  refused, ///< not taken, twice the bound would be passed: write it again after on_drained, or
           ///< abort
  gone,    ///< thrown away: the client is gone, or the answer has ended
};

/// A whole answer. Content-Length, Transfer-Encoding, Date and Connection are the server's;
/// `Connection: close` in the headers closes after the answer. CR, LF and NUL in values become
/// blanks.
struct answer {
  int status = 200;
  header_list headers;
  std::string body;
};

class exchange {
public:
  virtual ~exchange() = default;
  exchange(const exchange&) = delete;
  exchange& operator=(const exchange&) = delete;

  /// Answers. False (and nothing happens) if an answer has begun already or the client is gone.
  virtual bool respond(answer a) = 0;
  bool respond(int status, header_list headers, std::string body) {
    return respond(answer{status, std::move(headers), std::move(body)});
  }

  /// Sends status and headers now; the body follows in write()s (chunked; HTTP/1.0: until close).
  virtual bool begin_stream(int status, header_list headers) = 0;
  /// Appends to the stream. An empty chunk does nothing. A chunk of any size is taken if nothing
  /// waits. For a HEAD request chunks are counted as sent and thrown away.
  virtual written write(std::string_view chunk) = 0;
  /// Ends the stream properly. `close`: and the connection after it.
  virtual void end(bool close = false) = 0;
  /// Cuts the connection: the client sees a broken stream, not an end.
  virtual void abort() = 0;

  /// [bytes] of this answer that the operating system has not taken yet.
  virtual std::size_t queued() const = 0;
  /// Called each time that, after a `full` or `refused`, at most half of the bound waits. One
  /// callback; a later one replaces it.
  virtual void on_drained(std::function<void()> callback) = 0;
  /// Called once when the client leaves before the answer has ended, in whatever phase; at once
  /// (from the connection's thread) if it has left already. One callback; a later one replaces it.
  virtual void on_gone(std::function<void(gone)> callback) = 0;
  virtual bool is_gone() const = 0;

  /// Runs `work` on the thread of the connection; dropped if the server has stopped.
  virtual void post(std::function<void()> work) = 0;

protected:
  exchange() = default;
};
using exchange_ptr = std::shared_ptr<exchange>;

} // namespace di::http
