// SPDX-License-Identifier: Apache-2.0
// What one connection does, without socket, thread or clock: bytes and the time go in; requests,
// bytes, a deadline and the wish to close come out. The Asio shell carries it out.
//
//   idle -> head -> body -> answering -> idle ...       closing: flush, half-close, discard, close
#pragma once

#include "messaging/http/exchange_state.hpp"
#include "messaging/http/output_queue.hpp"
#include "messaging/http/request_parser.hpp"
#include "messaging/http/server.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace di::http {

/// Shared by all connections of a server.
struct server_stats {
  std::atomic<std::uint64_t> accepted{0}, open{0}, busy{0}, requests{0}, refused{0}, timed_out{0},
      gone{0}, accept_errors{0}, bytes_in{0}, bytes_out{0};
  std::atomic<std::size_t> body_bytes{0}; ///< of bodies under way
  std::atomic<bool> full{false};          ///< no room for another connection: answers close
};

/// A refusal in the caller's format; plain text if there is none or it throws.
answer formatted(const callbacks& calls, const refusal& why);

/// What a connection is opened with.
struct connection_setup {
  std::shared_ptr<const callbacks> calls;
  http::limits limits;
  http::timeouts timeouts;
  bool length_required = false;
  std::shared_ptr<server_stats> stats;
  std::shared_ptr<loop_face> loop;
  std::string peer;
  std::uint16_t peer_port = 0;
  bool tls = false;
  std::uint64_t number = 0;
};

/// One thread. Handler and callbacks run inside these calls.
class connection_core {
public:
  using instant = std::chrono::steady_clock::time_point;

  /// @param wake makes flush() be called soon; any thread
  connection_core(connection_setup setup, std::function<void()> wake, instant now);
  ~connection_core();
  connection_core(const connection_core&) = delete;
  connection_core& operator=(const connection_core&) = delete;

  // --- what happens -----------------------------------------------------------------------------
  void received(std::string_view bytes, instant now);
  /// The client sends nothing more.
  void input_ended(instant now);
  /// The connection broke.
  void failed(gone why);
  /// The operating system took so many bytes of output().
  void sent(std::size_t bytes, instant now);
  /// Callers have said something.
  void flush(instant now);
  /// The deadline has passed, perhaps.
  void tick(instant now);
  /// Close as soon as nothing is under way; the next answer closes.
  void drain(instant now);
  /// Close if it is idle: others need the room.
  void shed();

  // --- what is to be done -----------------------------------------------------------------------
  output_queue& output() noexcept { return output_; }
  bool wants_input() const noexcept;
  /// Everything is sent: tell the client that nothing more comes, go on discarding what it sends.
  bool wants_half_close() const noexcept;
  /// Close now; `reset`: so that the client sees a broken connection.
  bool finished() const noexcept { return phase_ == phase::closed; }
  bool reset() const noexcept { return reset_; }
  /// [bytes] to read at once.
  std::size_t read_bytes() const noexcept;
  /// When tick() is due.
  instant deadline() const noexcept;
  /// Between requests with nothing to send, and not just opened; since when.
  std::optional<instant> idle_since(instant now) const noexcept;

private:
  enum class phase : std::uint8_t { idle, head, body, answering, closing, closed };

  void advance(instant now);
  bool read_one(instant now);
  bool after_head(instant now);
  void dispatch(instant now);
  void take(instant now);
  void send_head(exchange_state::taken& t, instant now);
  void end_exchange(bool close, instant now);
  void refuse(const parse_refusal& why, instant now);
  void send_closing(answer a, instant now);
  void close_after_output(instant now);
  void close(bool reset);
  void queue(std::string&& bytes, instant now);
  void next_request(instant now);
  void release_body();
  instant body_deadline() const noexcept;

  connection_setup setup_;
  std::function<void()> wake_;
  request_parser parser_;
  std::string input_; ///< received, not yet used
  output_queue output_;
  std::size_t earlier_bytes_ = 0; ///< of output_, before the first byte of the current answer
  std::shared_ptr<exchange_state> current_;
  phase phase_ = phase::idle;
  instant since_;    ///< the phase began
  instant progress_; ///< the client took bytes, or output began to wait
  instant eof_at_{}; ///< valid if input_ended_
  std::uint64_t requests_ = 0;
  std::size_t body_counted_ = 0; ///< [bytes] in stats->body_bytes
  bool keep_alive_ = true;       ///< of the current request
  bool old_client_ = false;      ///< HTTP/1.0
  bool head_only_ = false;
  bool must_close_ = false;
  bool input_ended_ = false;
  bool draining_ = false;
  bool reset_ = false;
  bool in_advance_ = false;
};

} // namespace di::http
