// SPDX-License-Identifier: Apache-2.0
// A plain HTTP client over a blocking socket, each wait with a deadline: what it sends is up to the
// test, byte by byte.
#pragma once

#include "messaging/http/request.hpp"

#include <chrono>
#include <cstdlib>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace di::testing {

struct http_response {
  int status = 0;
  http::header_list headers;
  std::string body;
  bool complete = false; ///< false: the connection ended or the time passed inside it
};

class http_client {
public:
  static constexpr std::chrono::milliseconds patience{10'000};

  explicit http_client(std::uint16_t port, int receive_bytes = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes > 0)
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  }
  http_client(http_client&& o) noexcept
      : fd_{std::exchange(o.fd_, -1)}, connected_{o.connected_}, buffer_{std::move(o.buffer_)} {}
  http_client(const http_client&) = delete;
  http_client& operator=(const http_client&) = delete;
  ~http_client() { close(); }

  bool connected() const { return connected_; }
  int fd() const { return fd_; }
  const std::string& buffered() const { return buffer_; }

  /// False if the other side is gone.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0)
        return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0)
      ::close(std::exchange(fd_, -1));
  }
  /// Closes so that the other side sees a reset.
  void reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }

  /// Reads once more. False: end, error, or nothing came in time.
  bool more(std::chrono::milliseconds wait = patience) {
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(wait.count())) <= 0)
      return false;
    char bytes[16384];
    const auto n = ::recv(fd_, bytes, sizeof bytes, 0);
    ended_ = n <= 0;
    if (n > 0)
      buffer_.append(bytes, static_cast<std::size_t>(n));
    return n > 0;
  }
  bool read_until(std::string_view text, std::chrono::milliseconds wait = patience) {
    while (buffer_.find(text) == buffer_.npos)
      if (!more(wait))
        return false;
    return true;
  }
  /// True if the server closes; what it still sends is kept in buffered().
  bool closed(std::chrono::milliseconds wait = patience) {
    while (!ended_)
      if (!more(wait) && !ended_)
        return false;
    return true;
  }

  /// The next answer; `head_only`: to a HEAD request.
  http_response response(bool head_only = false) {
    http_response r;
    if (!read_until("\r\n\r\n"))
      return r;
    const auto end = buffer_.find("\r\n\r\n");
    parse_head(std::string_view{buffer_}.substr(0, end + 2), r);
    buffer_.erase(0, end + 4);
    if (head_only || r.status == 204 || r.status == 304 || r.status == 100) {
      r.complete = true;
    } else if (r.headers.has_token("transfer-encoding", "chunked")) {
      r.complete = chunked_body(r.body);
    } else if (const auto length = r.headers.find("content-length")) {
      const auto n = static_cast<std::size_t>(std::stoull(std::string{*length}));
      while (buffer_.size() < n && more()) {
      }
      r.complete = buffer_.size() >= n;
      r.body = buffer_.substr(0, n);
      buffer_.erase(0, n);
    } else {
      r.complete = closed();
      r.body = std::exchange(buffer_, {});
    }
    return r;
  }
  http_response ask(std::string_view request) {
    send(request);
    return response();
  }
  /// Drops the head of a stream.
  bool skip_head() {
    if (!read_until("\r\n\r\n"))
      return false;
    buffer_.erase(0, buffer_.find("\r\n\r\n") + 4);
    return true;
  }
  /// The next chunk of a stream; nullopt at its end or if it broke.
  std::optional<std::string> chunk() {
    if (!read_until("\r\n"))
      return std::nullopt;
    const auto line = buffer_.find("\r\n");
    const auto n = std::strtoull(buffer_.c_str(), nullptr, 16);
    while (buffer_.size() < line + 2 + n + 2)
      if (!more())
        return std::nullopt;
    auto out = buffer_.substr(line + 2, n);
    buffer_.erase(0, line + 2 + n + 2);
    return n > 0 ? std::optional{std::move(out)} : std::nullopt;
  }

private:
  static void parse_head(std::string_view head, http_response& r) {
    r.status = std::atoi(std::string{head.substr(9, 3)}.c_str());
    for (auto at = head.find("\r\n") + 2; at < head.size();) {
      const auto end = head.find("\r\n", at);
      const auto line = head.substr(at, end - at);
      const auto colon = line.find(": ");
      r.headers.add(std::string{line.substr(0, colon)}, std::string{line.substr(colon + 2)});
      at = end + 2;
    }
  }
  bool chunked_body(std::string& out) {
    while (auto part = chunk())
      out += *part;
    return !ended_;
  }

  int fd_ = -1;
  bool connected_ = false;
  bool ended_ = false;
  std::string buffer_;
};

} // namespace di::testing
