// SPDX-License-Identifier: Apache-2.0
// libzmq behind RAII: context, socket and message part. The C face, as zmq.hpp costs compile time.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/message.hpp"

#include <zmq.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace di::bus {

/// One zmq message part. Moved, never copied.
class part {
public:
  part() { zmq_msg_init(&message_); }
  /// Copies small bytes.
  explicit part(std::span<const std::byte> bytes);
  explicit part(std::size_t size) { zmq_msg_init_size(&message_, size); }
  ~part() { zmq_msg_close(&message_); }
  part(part&& other) noexcept : part{} { zmq_msg_move(&message_, &other.message_); }
  part& operator=(part&& other) noexcept {
    zmq_msg_move(&message_, &other.message_);
    return *this;
  }

  /// Points at the attachment's bytes and holds its owner until the transport has written them. The
  /// owner may be released on a thread of ZeroMQ.
  static part lend(const shared_bytes& bytes);
  /// The same for a whole encoded frame.
  static part lend(std::vector<std::byte>&& frame);

  std::span<std::byte> bytes() noexcept {
    return {static_cast<std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  std::size_t size() const noexcept { return zmq_msg_size(&message_); }
  bool more() const noexcept { return zmq_msg_more(&message_) != 0; }
  zmq_msg_t* raw() noexcept { return &message_; }

private:
  zmq_msg_t message_;
};

/// Takes a received part as shared bytes without a copy, unless they lie unaligned (then adds to
/// `realigned_bytes`): rows are read as words.
shared_bytes adopt(part&& received, std::atomic<std::uint64_t>& realigned_bytes);

/// A socket of one thread.
class socket {
public:
  socket() = default;
  socket(void* context, int type) : handle_{zmq_socket(context, type)} {}
  ~socket() { close(); }
  socket(socket&& other) noexcept : handle_{std::exchange(other.handle_, nullptr)} {}
  socket& operator=(socket&& other) noexcept {
    if (this != &other) {
      close();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  void* raw() const noexcept { return handle_; }
  void close() noexcept {
    if (handle_ != nullptr)
      zmq_close(std::exchange(handle_, nullptr));
  }

  void set(int option, int value) { zmq_setsockopt(handle_, option, &value, sizeof value); }
  void set(int option, std::int64_t value) {
    zmq_setsockopt(handle_, option, &value, sizeof value);
  }
  void set(int option, std::string_view value) {
    zmq_setsockopt(handle_, option, value.data(), value.size());
  }
  std::string endpoint() const;

  /// @errors io_error with the endpoint and the system's reason
  result<void> bind(const std::string& where);
  result<void> connect(const std::string& where);

  /// False if the socket cannot take it now. Never blocks.
  bool send(part& p, bool more) noexcept {
    return zmq_msg_send(p.raw(), handle_, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
  }
  /// False if nothing is there. Never blocks.
  bool receive(part& p) noexcept { return zmq_msg_recv(p.raw(), handle_, ZMQ_DONTWAIT) >= 0; }

private:
  void* handle_ = nullptr;
};

/// Ends after all its sockets; waits at most their linger time.
class context {
public:
  context() : handle_{zmq_ctx_new()} {}
  ~context() {
    if (handle_ != nullptr)
      zmq_ctx_term(handle_);
  }
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  void set(int option, int value) { zmq_ctx_set(handle_, option, value); }
  int get(int option) const { return zmq_ctx_get(handle_, option); }
  void* raw() const noexcept { return handle_; }

private:
  void* handle_;
};

} // namespace di::bus
