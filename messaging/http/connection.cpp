// SPDX-License-Identifier: Apache-2.0
// The shell of one connection over Asio.
#include "messaging/http/connection.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>

#include <array>
#include <sys/socket.h>
#include <utility>

namespace di::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

/// Buffers that stand elsewhere, as a sequence that is cheap to copy.
struct buffer_view {
  using value_type = asio::const_buffer;
  using const_iterator = const asio::const_buffer*;
  const_iterator first, last;
  const_iterator begin() const noexcept { return first; }
  const_iterator end() const noexcept { return last; }
};

using tls_stream = asio::ssl::stream<tcp::socket&>;

class asio_connection final : public connection,
                              public std::enable_shared_from_this<asio_connection> {
public:
  using clock = std::chrono::steady_clock;

  asio_connection(asio::io_context& loop, std::function<void()> ended)
      : socket_{loop}, timer_{loop}, ended_{std::move(ended)} {}

  void start(int fd, connection_setup setup, const tls_context& tls) {
    error_code ec;
    sockaddr_storage address{};
    socklen_t bytes = sizeof address;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
    socket_.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd, ec);
    auto wake = [weak = weak_from_this()] {
      if (const auto self = weak.lock())
        self->flush();
    };
    core_.emplace(std::move(setup), std::move(wake), clock::now());
    if (ec)
      return abort();
    socket_.non_blocking(true, ec);
    if (tls)
      handshake(tls);
    else
      pump();
  }

  void drain() override {
    core_->drain(clock::now());
    pump();
  }
  void shed() override {
    core_->shed();
    pump();
  }
  void abort() override {
    core_->failed(gone::stopped);
    pump();
  }
  std::optional<clock::time_point> idle_since() const override {
    return handshaking_ ? std::nullopt : core_->idle_since(clock::now());
  }

private:
  void handshake(const tls_context& tls) {
    SSL_CTX_up_ref(tls.get());
    asio::ssl::context context{tls.get()}; // takes that reference
    tls_.emplace(socket_, context);
    handshaking_ = true;
    arm_timer();
    tls_->async_handshake(asio::ssl::stream_base::server,
                          [self = shared_from_this()](const error_code& ec) {
                            self->handshaking_ = false;
                            if (ec)
                              self->core_->failed(gone::reset);
                            self->pump();
                          });
  }

  void flush() {
    if (closed_)
      return;
    core_->flush(clock::now());
    pump();
  }

  /// Carries out what the core wishes.
  void pump() {
    if (closed_)
      return;
    if (core_->finished())
      return close();
    if (!handshaking_) {
      if (!writing_ && !core_->output().empty())
        write();
      if (!writing_ && !half_closed_ && core_->wants_half_close())
        half_close();
      if (!reading_ && core_->wants_input())
        read();
    }
    arm_timer();
  }

  void read() {
    reading_ = true;
    const auto wanted = core_->read_bytes();
    if (wanted != read_bytes_) {
      read_buffer_ = std::make_unique<char[]>(wanted);
      read_bytes_ = wanted;
    }
    auto then = [self = shared_from_this()](const error_code& ec, std::size_t bytes) {
      self->was_read(ec, bytes);
    };
    const auto buffer = asio::buffer(read_buffer_.get(), read_bytes_);
    if (tls_)
      tls_->async_read_some(buffer, std::move(then));
    else
      socket_.async_read_some(buffer, std::move(then));
  }

  void was_read(const error_code& ec, std::size_t bytes) {
    reading_ = false;
    if (closed_)
      return;
    const auto now = clock::now();
    if (bytes > 0)
      core_->received({read_buffer_.get(), bytes}, now);
    if (ec == asio::error::eof || ec == asio::ssl::error::stream_truncated)
      core_->input_ended(now);
    else if (ec)
      core_->failed(gone::reset);
    pump();
  }

  void write() {
    writing_ = true;
    std::size_t count = 0;
    core_->output().parts(write_buffers_.size(), [&](std::string_view part) {
      write_buffers_[count++] = asio::const_buffer{part.data(), part.size()};
    });
    auto then = [self = shared_from_this()](const error_code& ec, std::size_t bytes) {
      self->was_written(ec, bytes);
    };
    const buffer_view view{write_buffers_.data(), write_buffers_.data() + count};
    if (tls_)
      tls_->async_write_some(view, std::move(then));
    else
      socket_.async_write_some(view, std::move(then));
  }

  void was_written(const error_code& ec, std::size_t bytes) {
    writing_ = false;
    if (closed_)
      return;
    if (bytes > 0)
      core_->sent(bytes, clock::now());
    if (ec)
      core_->failed(gone::reset);
    pump();
  }

  void half_close() {
    half_closed_ = true;
    error_code ignored;
    if (!tls_) {
      socket_.shutdown(tcp::socket::shutdown_send, ignored);
      return;
    }
    tls_->async_shutdown([self = shared_from_this()](const error_code&) {
      error_code ec;
      if (!self->closed_)
        self->socket_.shutdown(tcp::socket::shutdown_send, ec);
    });
  }

  void close() {
    closed_ = true;
    error_code ignored;
    if (core_->reset())
      socket_.set_option(asio::socket_base::linger{true, 0}, ignored);
    socket_.close(ignored);
    timer_.cancel(ignored);
    if (const auto ended = std::exchange(ended_, nullptr))
      ended();
  }

  /// A timer that is due earlier than needed is left alone: it looks again when it fires.
  void arm_timer() {
    const auto due = core_->deadline();
    if (due == clock::time_point::max() || (armed_ && armed_for_ <= due))
      return;
    armed_ = true;
    armed_for_ = due;
    timer_.expires_at(due);
    timer_.async_wait([self = shared_from_this()](const error_code& ec) {
      if (ec || self->closed_)
        return;
      self->armed_ = false;
      self->core_->tick(clock::now());
      self->pump();
    });
  }

  tcp::socket socket_;
  std::optional<tls_stream> tls_;
  asio::steady_timer timer_;
  std::function<void()> ended_;
  std::optional<connection_core> core_;
  std::unique_ptr<char[]> read_buffer_;
  std::size_t read_bytes_ = 0;
  std::array<asio::const_buffer, 16> write_buffers_;
  clock::time_point armed_for_{};
  bool armed_ = false;
  bool handshaking_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool half_closed_ = false;
  bool closed_ = false;
};

} // namespace

std::shared_ptr<connection> open_connection(asio::io_context& loop, int socket,
                                            connection_setup setup, const tls_context& tls,
                                            std::function<void()> ended) {
  auto made = std::make_shared<asio_connection>(loop, std::move(ended));
  made->start(socket, std::move(setup), tls);
  return made;
}

} // namespace di::http
