// SPDX-License-Identifier: Apache-2.0
// A load generator over epoll.
#include "tests/bench/load_client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string_view>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace di::bench {

namespace {

using clock = std::chrono::steady_clock;

double us(clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

/// One connection and the answer it reads.
struct client {
  int fd = -1;
  std::string buffer;
  std::size_t unsent = 0; ///< [bytes] of the request, at its end
  clock::time_point sent, last_event;
  bool busy = false;
  bool head = true;  ///< the head of the answer is not whole yet
  bool first = true; ///< no byte of the body has come
  bool chunked = false;
  int status = 0;
  std::size_t left = 0; ///< [bytes] of the body (Content-Length)
};

class generator {
public:
  explicit generator(const load& l) : load_{l}, epoll_{::epoll_create1(EPOLL_CLOEXEC)} {}
  ~generator() {
    for (auto& c : clients_)
      if (c.fd >= 0)
        ::close(c.fd);
    ::close(epoll_);
  }

  load_figures run() {
    const auto start = clock::now();
    const auto end = start + load_.most;
    clients_.resize(load_.connections);
    for (std::size_t i = 0; i < clients_.size(); ++i)
      open(i);
    epoll_event events[256];
    while (busy_ > 0) {
      const auto now = clock::now();
      over_ = over_ || now >= end;
      if (over_ && (load_.requests == 0 || now >= end + load_.most))
        break;
      const int n = ::epoll_wait(epoll_, events, 256, 100);
      for (int i = 0; i < n; ++i)
        ready(events[i].data.u64, events[i].events);
    }
    out_.seconds = std::chrono::duration<double>(clock::now() - start).count();
    if (load_.requests > 0)
      out_.broken += busy_; // the last ones were waited for
    return std::move(out_);
  }

private:
  void open(std::size_t at) {
    client& c = clients_[at];
    if (!may_ask())
      return;
    c = client{};
    c.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(load_.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    ::setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (c.fd < 0 || ::connect(c.fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
      ++out_.broken;
      return;
    }
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = at;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, c.fd, &e);
    ask(c);
  }

  bool may_ask() const { return !over_ && (load_.requests == 0 || asked_ < load_.requests); }

  void ask(client& c) {
    ++asked_;
    ++busy_;
    c.busy = c.head = c.first = true;
    c.buffer.clear();
    c.sent = clock::now();
    c.last_event = {};
    std::string_view rest{load_.request};
    while (!rest.empty()) { // requests fit the socket's buffer
      const auto n = ::send(c.fd, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (n <= 0)
        break;
      rest.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  void ready(std::size_t at, std::uint32_t) {
    client& c = clients_[at];
    char bytes[16384];
    const auto n = ::recv(c.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
      return;
    if (n <= 0) {
      if (c.busy) {
        ++out_.broken;
        --busy_;
      }
      ::close(c.fd);
      c.fd = -1;
      return open(at);
    }
    out_.bytes += static_cast<std::size_t>(n);
    c.buffer.append(bytes, static_cast<std::size_t>(n));
    if (read(c)) {
      --busy_;
      c.busy = false;
      ++(c.status == 200 ? out_.answers : out_.others);
      out_.answer_us.push_back(us(clock::now() - c.sent));
      if (may_ask())
        ask(c);
    }
  }

  /// True when the answer is whole.
  bool read(client& c) {
    if (c.head) {
      const auto end = c.buffer.find("\r\n\r\n");
      if (end == c.buffer.npos)
        return false;
      c.head = false;
      c.status = std::atoi(c.buffer.c_str() + 9);
      const auto length = c.buffer.find("Content-Length: ");
      c.chunked = length > end;
      c.left = c.chunked ? 0 : std::strtoull(c.buffer.c_str() + length + 16, nullptr, 10);
      c.buffer.erase(0, end + 4);
    }
    if (std::exchange(c.first, c.first && c.buffer.empty()) && !c.first)
      out_.first_us.push_back(us(clock::now() - c.sent));
    if (!c.chunked)
      return c.buffer.size() >= c.left;
    return read_chunks(c);
  }

  bool read_chunks(client& c) {
    std::size_t at = 0;
    bool whole = false;
    while (!whole) {
      const auto line = c.buffer.find("\r\n", at);
      if (line == c.buffer.npos)
        break;
      const auto size = std::strtoull(c.buffer.c_str() + at, nullptr, 16);
      if (c.buffer.size() < line + 2 + size + 2)
        break;
      read_events(c, std::string_view{c.buffer}.substr(line + 2, size));
      at = line + 2 + size + 2;
      whole = size == 0;
    }
    c.buffer.erase(0, at);
    return whole;
  }

  void read_events(client& c, std::string_view chunk) {
    const auto now = clock::now();
    for (auto at = chunk.find("data: "); at != chunk.npos; at = chunk.find("data: ", at + 6)) {
      ++out_.events;
      if (c.last_event != clock::time_point{})
        out_.event_gap_us.push_back(us(now - c.last_event));
      c.last_event = now;
      if (load_.stamped) {
        const auto stamp = std::strtoll(chunk.data() + at + 6, nullptr, 10);
        out_.event_age_us.push_back(us(now.time_since_epoch() - std::chrono::nanoseconds{stamp}));
      }
    }
  }

  const load& load_;
  const int epoll_;
  std::vector<client> clients_;
  std::size_t asked_ = 0, busy_ = 0;
  bool over_ = false;
  load_figures out_;
};

} // namespace

load_figures run_load(const load& l) {
  return generator{l}.run();
}

double percentile(std::vector<double>& values, double p) {
  if (values.empty())
    return 0;
  const auto at = static_cast<std::ptrdiff_t>(p * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

std::string percentiles_json(std::vector<double>& values) {
  return fmt::format(
      R"({{"p50": {:.1f}, "p90": {:.1f}, "p99": {:.1f}, "max": {:.1f}, "count": {}}})",
      percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99),
      percentile(values, 1), values.size());
}

} // namespace di::bench
