// SPDX-License-Identifier: Apache-2.0
// Listening sockets of a name.
#include "messaging/http/options.hpp"

#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace di::http {

namespace {

std::uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
    return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

/// A listening socket at one address, or -1 with errno.
int listen_at(const addrinfo& at, std::uint16_t port, int backlog) {
  const int fd = ::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return -1;
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage address{};
  std::memcpy(&address, at.ai_addr, at.ai_addrlen);
  if (at.ai_family == AF_INET6) {
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  }
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), at.ai_addrlen) == 0
      && ::listen(fd, backlog) == 0)
    return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

} // namespace

result<listeners> listen_on(const std::string& host, std::uint16_t port, int backlog) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (const int e = ::getaddrinfo(host == "*" ? nullptr : host.c_str(), host == "*" ? "0" : nullptr,
                                  &hints, &found);
      e != 0)
    return fail(ec::bad_argument, "cannot listen at '{}': {}", host, ::gai_strerror(e));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all{found, ::freeaddrinfo};

  listeners out;
  int error = 0;
  // IPv4 first: a free port chosen there is then tried for IPv6.
  for (const int family : {AF_INET, AF_INET6})
    for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
      if (a->ai_family != family)
        continue;
      const int fd = listen_at(*a, out.port != 0 ? out.port : port, backlog);
      if (fd >= 0) {
        out.descriptors.push_back(fd);
        out.port = port_of(fd);
      } else if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) {
        error = errno; // a host without IPv6 is no error
      }
    }
  const bool taken = error != 0 && (port != 0 || out.descriptors.empty());
  if (!taken && !out.descriptors.empty())
    return out;
  for (const int fd : out.descriptors)
    ::close(fd);
  return fail(ec::io_error, "cannot listen at {}:{}: {}", host, port,
              std::strerror(error != 0 ? error : EADDRNOTAVAIL));
}

} // namespace di::http
