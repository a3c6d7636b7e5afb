// SPDX-License-Identifier: Apache-2.0
// Connecting, TLS, and waiting for either bytes or a cancellation.
#include "launch/chat/http_client.hpp"

#include "launch/process.hpp" // unique_fd

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

namespace di::launch {
namespace {

using clock = std::chrono::steady_clock;

struct tls_free {
  void operator()(SSL_CTX* c) const { SSL_CTX_free(c); }
  void operator()(SSL* s) const { SSL_free(s); }
};

/// One connection; descriptors do not block, waiting is here.
class client_socket {
public:
  explicit client_socket(const http_client_options& o) : options_{o} {}

  result<void> connect(const http_url& to);
  result<void> write(std::string_view bytes);
  /// @return bytes read; 0: closed
  result<std::size_t> read(char* to, std::size_t room);

private:
  result<void> wait(short events, clock::time_point until);
  result<void> connect_to(const addrinfo& at, const http_url& to, clock::time_point until);
  result<void> start_tls(const http_url& to);
  /// What an SSL call wants before it is made again. @errors io_error, refused
  result<short> wanted(int outcome, const char* doing);

  const http_client_options& options_;
  unique_fd fd_;
  std::unique_ptr<SSL_CTX, tls_free> context_;
  std::unique_ptr<SSL, tls_free> tls_;
};

result<void> client_socket::wait(short events, clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    if (left <= 0)
      return fail(ec::deadline_exceeded, "no answer in time");
    pollfd on[2]{{fd_.get(), events, 0}, {options_.cancel_fd, POLLIN, 0}};
    const int n = ::poll(on, 2, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (n < 0 && errno != EINTR)
      return fail(ec::io_error, "poll: {}", std::strerror(errno));
    if (n > 0 && on[1].revents != 0)
      return fail(ec::cancelled, "cancelled");
    if (n > 0 && on[0].revents != 0)
      return {};
  }
}

result<void> client_socket::connect_to(const addrinfo& at, const http_url& to,
                                       clock::time_point until) {
  fd_ = unique_fd{::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!fd_)
    return fail(ec::io_error, "socket: {}", std::strerror(errno));
  if (::connect(fd_.get(), at.ai_addr, at.ai_addrlen) == 0)
    return {};
  int why = errno;
  if (why == EINPROGRESS) {
    DI_TRY_VOID(wait(POLLOUT, until));
    socklen_t size = sizeof(why);
    ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &why, &size);
  }
  if (why != 0)
    return fail(ec::unavailable, "{}:{}: {}", to.host, to.port, std::strerror(why));
  return {};
}

result<void> client_socket::connect(const http_url& to) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int e = ::getaddrinfo(to.host.c_str(), to.port.c_str(), &hints, &found); e != 0)
    return fail(ec::not_found, "{}: {}", to.host, ::gai_strerror(e));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all{found, ::freeaddrinfo};
  const auto until = clock::now() + options_.connect;
  result<void> last = fail(ec::not_found, "{}: no address", to.host);
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
    last = connect_to(*at, to, until);
    if (last.ok())
      return to.tls ? start_tls(to) : result<void>{};
    if (last.error().code == ec::cancelled)
      break;
  }
  return last;
}

result<short> client_socket::wanted(int outcome, const char* doing) {
  const int e = SSL_get_error(tls_.get(), outcome);
  if (e == SSL_ERROR_WANT_READ)
    return static_cast<short>(POLLIN);
  if (e == SSL_ERROR_WANT_WRITE)
    return static_cast<short>(POLLOUT);
  if (const long v = SSL_get_verify_result(tls_.get()); v != X509_V_OK)
    return fail(ec::refused, "TLS: {} (--insecure takes it all the same)",
                X509_verify_cert_error_string(v));
  char text[160] = "connection lost";
  if (const auto code = ERR_get_error(); code != 0)
    ERR_error_string_n(code, text, sizeof(text));
  return fail(ec::io_error, "TLS, {}: {}", doing, text);
}

result<void> client_socket::start_tls(const http_url& to) {
  context_.reset(SSL_CTX_new(TLS_client_method()));
  if (!context_)
    return fail(ec::internal, "no TLS");
  SSL_CTX_set_default_verify_paths(context_.get());
  SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(context_.get(), SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_options(context_.get(), SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_verify(context_.get(), options_.check_certificate ? SSL_VERIFY_PEER : SSL_VERIFY_NONE,
                     nullptr);
  tls_.reset(SSL_new(context_.get()));
  if (!tls_ || SSL_set_fd(tls_.get(), fd_.get()) != 1)
    return fail(ec::internal, "no TLS");
  in6_addr ignored{};
  const bool address = ::inet_pton(AF_INET, to.host.c_str(), &ignored) == 1
                       || ::inet_pton(AF_INET6, to.host.c_str(), &ignored) == 1;
  if (address)
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_.get()), to.host.c_str());
  else {
    SSL_set_tlsext_host_name(tls_.get(), to.host.c_str());
    SSL_set1_host(tls_.get(), to.host.c_str());
  }
  const auto until = clock::now() + options_.connect;
  for (int n = 0; (n = SSL_connect(tls_.get())) != 1;) {
    DI_TRY(const short events, wanted(n, "handshake"));
    DI_TRY_VOID(wait(events, until));
  }
  return {};
}

result<void> client_socket::write(std::string_view bytes) {
  while (!bytes.empty()) {
    short events = POLLOUT;
    std::size_t sent = 0;
    if (tls_) {
      const int n = SSL_write_ex(tls_.get(), bytes.data(), bytes.size(), &sent);
      if (n != 1) {
        DI_TRY(events, wanted(n, "sending"));
      }
    } else if (const auto n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); n >= 0) {
      sent = static_cast<std::size_t>(n);
    } else if (errno != EAGAIN && errno != EINTR) {
      return fail(ec::io_error, "sending: {}", std::strerror(errno));
    }
    bytes.remove_prefix(sent);
    if (sent == 0)
      DI_TRY_VOID(wait(events, clock::now() + options_.silence));
  }
  return {};
}

result<std::size_t> client_socket::read(char* to, std::size_t room) {
  const auto until = clock::now() + options_.silence;
  for (;;) {
    short events = POLLIN;
    if (tls_) {
      std::size_t got = 0;
      const int n = SSL_read_ex(tls_.get(), to, room, &got);
      if (n == 1)
        return got;
      if (SSL_get_error(tls_.get(), n) == SSL_ERROR_ZERO_RETURN)
        return std::size_t{0};
      DI_TRY(events, wanted(n, "receiving"));
    } else {
      const auto n = ::recv(fd_.get(), to, room, 0);
      if (n >= 0)
        return static_cast<std::size_t>(n);
      if (errno != EAGAIN && errno != EINTR)
        return fail(ec::io_error, "receiving: {}", std::strerror(errno));
    }
    DI_TRY_VOID(wait(events, until));
  }
}

} // namespace

result<http_url> parse_url(std::string_view text) {
  http_url u;
  std::string_view rest = text;
  if (const auto at = rest.find("://"); at != std::string_view::npos) {
    const auto scheme = rest.substr(0, at);
    if (scheme != "http" && scheme != "https")
      return fail(ec::bad_argument, "{}: http:// or https:// is needed", text);
    u.tls = scheme == "https";
    rest.remove_prefix(at + 3);
  }
  const auto slash = rest.find('/');
  std::string_view where = rest.substr(0, slash);
  u.path = slash == std::string_view::npos ? "" : std::string{rest.substr(slash)};
  while (u.path.ends_with('/'))
    u.path.pop_back();
  const bool bracket = where.starts_with('[');
  const auto end = bracket ? where.find(']') : where.rfind(':');
  if (bracket && end == std::string_view::npos)
    return fail(ec::bad_argument, "{}: ] is missing", text);
  const auto colon = bracket ? where.find(':', end) : end;
  u.host = bracket ? std::string{where.substr(1, end - 1)} : std::string{where.substr(0, colon)};
  u.port = colon == std::string_view::npos ? (u.tls ? "443" : "80")
                                           : std::string{where.substr(colon + 1)};
  const bool fits = !u.host.empty() && !u.port.empty() && u.port.size() <= 5
                    && u.port.find_first_not_of("0123456789") == std::string::npos
                    && text.find_first_of(" \t\r\n") == std::string_view::npos
                    && u.host.find_first_of("@?#") == std::string::npos
                    && u.path.find_first_of("?#") == std::string::npos;
  if (!fits)
    return fail(ec::bad_argument, "{}: write http://HOST:PORT", text);
  return u;
}

result<http_answer>
exchange_http(const http_url& to, const http_call& call, const http_client_options& options,
              const std::function<bool(const http_answer&, std::string_view)>& body) {
  client_socket socket{options};
  DI_TRY_VOID(socket.connect(to));
  const bool colons = to.host.find(':') != std::string::npos;
  std::string head =
      fmt::format("{} {}{} HTTP/1.1\r\nHost: {}{}{}:{}\r\nConnection: close\r\n", call.method,
                  to.path, call.target, colons ? "[" : "", to.host, colons ? "]" : "", to.port);
  for (const auto& [name, value] : call.headers)
    head += fmt::format("{}: {}\r\n", name, value);
  if (call.method != "GET")
    head += fmt::format("Content-Length: {}\r\n", call.body.size());
  // A server may refuse before it has read everything; its answer says why.
  const auto sent = socket.write(head + "\r\n" + call.body);
  if (!sent.ok() && sent.error().code != ec::io_error)
    return fail(sent.error());
  http_answer answer;
  char room[16'384];
  while (!answer.done()) {
    DI_TRY(const auto n, socket.read(room, sizeof(room)));
    std::string part;
    if (n == 0) {
      DI_TRY_VOID(answer.close());
      break;
    }
    DI_TRY_VOID(answer.feed({room, n}, part));
    if (!part.empty() && !body(answer, part))
      break;
  }
  return answer;
}

} // namespace di::launch
