// SPDX-License-Identifier: Apache-2.0
// Accepting, reading one line, writing answers without waiting.
#include "launch/admin_server.hpp"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace di::launch {
namespace {

using clock = poll_loop::clock;
constexpr std::chrono::milliseconds retry_after{20}; ///< a reader that is slow

} // namespace

result<std::unique_ptr<admin_server>> admin_server::make(poll_loop& loop,
                                                         const std::string& run_dir, events on) {
  std::unique_ptr<admin_server> s{new admin_server{loop, std::move(on)}};
  s->path_ = run_dir + "/" + admin_socket_name;
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  if (s->path_.size() >= sizeof(at.sun_path))
    return fail(ec::io_error, "{}: too long for a socket", s->path_);
  std::memcpy(at.sun_path, s->path_.c_str(), s->path_.size() + 1);
  s->listener_ = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const auto before = ::umask(0177); // the socket is ours alone from its first moment
  const bool bound =
      s->listener_
      && ::bind(s->listener_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0;
  ::umask(before);
  if (!bound || ::listen(s->listener_.get(), 16) != 0)
    return fail(ec::io_error, "{}: {}", s->path_, std::strerror(errno));
  loop.watch(s->listener_.get(), [server = s.get()] { server->accept(); });
  return s;
}

admin_server::~admin_server() {
  while (!clients_.empty())
    drop(clients_.begin()->first);
  if (listener_) {
    loop_.forget(listener_.get());
    ::unlink(path_.c_str());
  }
}

void admin_server::accept() {
  unique_fd fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  if (!fd)
    return;
  ucred who{};
  socklen_t size = sizeof(who);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0
      || (who.uid != ::getuid() && who.uid != 0) || clients_.size() >= connections_max)
    return;
  const auto number = ++last_;
  auto c = std::make_unique<client>();
  c->fd = std::move(fd);
  loop_.watch(c->fd.get(), [this, number] { read(number); });
  clients_.emplace(number, std::move(c));
}

void admin_server::read(std::uint64_t number) {
  const auto found = clients_.find(number);
  if (found == clients_.end())
    return;
  auto& c = *found->second;
  std::string line;
  const bool open = c.lines.read(c.fd.get(), [&](const std::string& l) {
    line = line.empty() ? l : line; // one question a connection
  });
  if (!line.empty() && !std::exchange(c.asked, true))
    on_.line(number, line); // may answer and drop it at once
  if (open || !clients_.contains(number))
    return;
  if (!c.closing && c.asked)
    on_.gone(number);
  drop(number);
}

void admin_server::reply(std::uint64_t connection, const std::string& line, bool last) {
  const auto found = clients_.find(connection);
  if (found == clients_.end())
    return;
  auto& c = *found->second;
  c.out += line + "\n";
  c.closing = c.closing || last;
  flush(connection);
}

void admin_server::flush(std::uint64_t number) {
  const auto found = clients_.find(number);
  if (found == clients_.end())
    return;
  auto& c = *found->second;
  while (!c.out.empty()) {
    const auto n = ::send(c.fd.get(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (n > 0) {
      c.out.erase(0, static_cast<std::size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && c.out.size() <= reply_bytes_max) {
      loop_.at(clock::now() + retry_after, [this, number] { flush(number); });
      return;
    }
    return drop(number);
  }
  if (c.closing)
    drop(number);
}

void admin_server::drop(std::uint64_t number) {
  const auto found = clients_.find(number);
  if (found == clients_.end())
    return;
  loop_.forget(found->second->fd.get());
  clients_.erase(found);
}

std::string admin_error(std::string_view code, std::string_view what) {
  return nlohmann::json{{"ok", false}, {"code", code}, {"error", what}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace di::launch
