// SPDX-License-Identifier: Apache-2.0
// The shared half of an exchange: what callers have said and the connection has not taken yet.
// Callers write from any thread; the connection takes on its own.
#pragma once

#include "messaging/http/exchange.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace di::http {

/// The thread of a connection. Any thread may call; outlives the server and is deaf then.
class loop_face {
public:
  virtual ~loop_face() = default;
  virtual void post(std::function<void()> work) = 0;
};

class exchange_state : public std::enable_shared_from_this<exchange_state> {
public:
  /// How the bytes of write() go out.
  enum class body : std::uint8_t { chunked, raw, dropped };

  /// @param wake runs on the loop when there is something to take; holds its connection weakly.
  exchange_state(std::shared_ptr<loop_face> loop, std::function<void()> wake, bool chunked,
                 bool head_only, std::size_t buffer_bytes);

  // --- callers, any thread ----------------------------------------------------------------------
  bool respond(answer a);
  bool begin_stream(int status, header_list headers);
  written write(std::string_view chunk);
  void end(bool close);
  void abort();
  void abandon();
  std::size_t queued() const;
  void on_drained(std::function<void()> callback);
  void on_gone(std::function<void(gone)> callback);
  bool is_gone() const;
  void post(std::function<void()> work) { loop_->post(std::move(work)); }

  // --- the connection's thread ------------------------------------------------------------------
  struct taken {
    std::optional<answer> head; ///< with the whole body unless `streams`
    bool streams = false;
    std::string bytes; ///< of the stream, framed
    bool ended = false;
    bool close = false;
    bool aborted = false;
    bool abandoned = false; ///< without an answer
  };
  /// What has been said since the last call. Until `awake(false)` no wake is posted.
  taken take();
  /// While awake, callers do not wake: the connection is about to take.
  void awake(bool on);
  /// The operating system took so many bytes of the answer. Calls on_drained if that is due.
  void sent(std::size_t bytes);
  /// Bytes of a head or a whole body that the connection has queued itself.
  void count(std::size_t bytes);
  /// The client is gone: calls on_gone, once. `broken`: nothing can be sent any more, so everything
  /// is dropped; else (a client that closed its own side) the answer is still sent if one comes.
  void lose(gone why, bool broken);

private:
  enum class stage : std::uint8_t { waiting, streaming, ended };
  void wake_locked();
  void end_locked(std::function<void()>& drained, std::function<void(gone)>& left);

  const std::shared_ptr<loop_face> loop_;
  const std::function<void()> wake_;
  const std::size_t buffer_bytes_;
  mutable std::mutex mutex_;
  stage stage_ = stage::waiting;
  body body_;
  taken next_;
  bool woken_ = false; ///< a wake is posted, or the connection is awake
  bool was_full_ = false;
  std::size_t queued_ = 0;
  std::optional<gone> gone_;
  bool told_ = false; ///< on_gone has been called
  bool broken_ = false;
  std::function<void()> drained_;
  std::function<void(gone)> left_;
};

/// The callers' handle; the last one to go abandons what has not been answered.
class exchange_handle final : public exchange {
public:
  explicit exchange_handle(std::shared_ptr<exchange_state> state) : state_{std::move(state)} {}
  ~exchange_handle() override { state_->abandon(); }

  using exchange::respond;
  bool respond(answer a) override { return state_->respond(std::move(a)); }
  bool begin_stream(int status, header_list headers) override {
    return state_->begin_stream(status, std::move(headers));
  }
  written write(std::string_view chunk) override { return state_->write(chunk); }
  void end(bool close) override { state_->end(close); }
  void abort() override { state_->abort(); }
  std::size_t queued() const override { return state_->queued(); }
  void on_drained(std::function<void()> callback) override {
    state_->on_drained(std::move(callback));
  }
  void on_gone(std::function<void(gone)> callback) override {
    state_->on_gone(std::move(callback));
  }
  bool is_gone() const override { return state_->is_gone(); }
  void post(std::function<void()> work) override { state_->post(std::move(work)); }

private:
  std::shared_ptr<exchange_state> state_;
};

} // namespace di::http
