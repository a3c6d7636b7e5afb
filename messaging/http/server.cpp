// SPDX-License-Identifier: Apache-2.0
// Threads, accepting, and the end of a server.
#include "messaging/http/server.hpp"

#include "messaging/base/log.hpp"
#include "messaging/http/connection.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <arpa/inet.h>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <utility>

namespace di::http {

namespace asio = boost::asio;
using boost::system::error_code;
using clock = std::chrono::steady_clock;

namespace {

/// How long accepting rests when there is no room for another connection or descriptor.
constexpr std::chrono::milliseconds accept_pause{100};
/// How long an aborted connection may take to end; it needs no outside help.
constexpr std::chrono::seconds abort_wait{5};
/// [bytes] in the kernel that the network has not begun to carry: queued() stays honest.
constexpr int unsent_bytes_max = 128 << 10;

class posting_loop final : public loop_face {
public:
  explicit posting_loop(asio::io_context& loop) : loop_{&loop} {}
  void post(std::function<void()> work) override {
    const std::lock_guard lock{mutex_};
    if (loop_ != nullptr)
      asio::post(*loop_, std::move(work));
  }
  void close() {
    const std::lock_guard lock{mutex_};
    loop_ = nullptr;
  }

private:
  std::mutex mutex_;
  asio::io_context* loop_;
};

struct event_loop {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::shared_ptr<posting_loop> face = std::make_shared<posting_loop>(context);
  std::unordered_map<std::uint64_t, std::shared_ptr<connection>> connections; ///< its thread only
  std::thread thread;

  ~event_loop() { face->close(); }

  template <class Each>
  void each_connection(Each each) {
    auto held = connections; // a connection may end meanwhile
    for (const auto& [number, c] : held)
      each(*c);
  }
  /// Makes room: closes what has been idle for the longest time.
  void close_longest_idle() {
    std::shared_ptr<connection> oldest;
    for (const auto& [number, c] : connections)
      if (const auto since = c->idle_since(); since && (!oldest || *since < *oldest->idle_since()))
        oldest = c;
    if (oldest)
      oldest->shed();
  }
};

struct accepted_socket {
  int fd = -1;
  std::string peer;
  std::uint16_t port = 0;
};

accepted_socket accept_from(int listening) {
  accepted_socket out;
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  out.fd = ::accept4(listening, reinterpret_cast<sockaddr*>(&address), &bytes,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (out.fd < 0)
    return out;
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET6) {
    const auto& a = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &a.sin6_addr, text, sizeof text);
    out.port = ntohs(a.sin6_port);
  } else {
    const auto& a = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &a.sin_addr, text, sizeof text);
    out.port = ntohs(a.sin_port);
  }
  out.peer = text;
  const int on = 1, probe_after_s = 30, probe_every_s = 10, probes = 3;
  const unsigned unacknowledged_ms = 60'000;
  ::setsockopt(out.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(out.fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes_max, sizeof unsent_bytes_max);
  // A host that vanished without a word is found out.
  ::setsockopt(out.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(out.fd, IPPROTO_TCP, TCP_KEEPIDLE, &probe_after_s, sizeof probe_after_s);
  ::setsockopt(out.fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe_every_s, sizeof probe_every_s);
  ::setsockopt(out.fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(out.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
  return out;
}

} // namespace

struct server::impl {
  http::options options;
  std::shared_ptr<const callbacks> calls;
  std::shared_ptr<server_stats> stats = std::make_shared<server_stats>();
  std::uint16_t port = 0;
  std::vector<std::unique_ptr<event_loop>> loops;
  // --- thread of loop 0 -------------------------------------------------------------------------
  std::vector<std::unique_ptr<asio::posix::stream_descriptor>> listening;
  std::vector<char> resting; ///< per listening socket: its wait is not armed
  std::optional<asio::steady_timer> pause;
  bool paused = false;
  bool stopped_accepting = false;
  std::uint64_t next_number = 0;
  // --- any thread -------------------------------------------------------------------------------
  std::mutex mutex;
  std::condition_variable all_ended;
  http::limits limits; ///< of new connections
  http::timeouts timeouts;
  tls_context tls;
  bool stopped = false;
  std::atomic<std::size_t> connections_max{0};
  std::atomic<bool> draining{false};

  result<void> adopt_listening();
  void start_threads();
  void wait_for_client(std::size_t at);
  void accept_one(std::size_t at);
  void open(accepted_socket client);
  void one_ended(event_loop& loop, std::uint64_t number);
  void rest(std::size_t at);
  void make_room();
  void wake_up();
  bool has_room() const { return stats->open.load() < connections_max.load(); }
  bool wait_until_ended(std::chrono::milliseconds most);
};

result<void> server::impl::adopt_listening() {
  std::vector<int> fds;
  if (options.listening.empty()) {
    DI_TRY(auto made, listen_on(options.host, options.port));
    fds = std::move(made.descriptors);
  } else {
    for (const int fd : options.listening)
      fds.push_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  }
  auto& context = loops[0]->context;
  int bad = 0;
  for (const int fd : fds) {
    sockaddr_storage address{};
    socklen_t bytes = sizeof address;
    if (fd < 0 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
      bad = errno;
      if (fd >= 0)
        ::close(fd);
      continue;
    }
    port = ntohs(address.ss_family == AF_INET6
                     ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                     : reinterpret_cast<const sockaddr_in&>(address).sin_port);
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    listening.push_back(std::make_unique<asio::posix::stream_descriptor>(context, fd));
  }
  if (bad != 0)
    return fail(ec::io_error, "a listening descriptor is not usable: {}", std::strerror(bad));
  resting.assign(listening.size(), 0);
  pause.emplace(context);
  return {};
}

void server::impl::start_threads() {
  for (std::size_t i = 0; i < listening.size(); ++i)
    wait_for_client(i);
  for (auto& loop : loops)
    loop->thread = std::thread{[l = loop.get()] { l->context.run(); }};
}

void server::impl::wait_for_client(std::size_t at) {
  listening[at]->async_wait(asio::posix::stream_descriptor::wait_read,
                            [this, at](const error_code& ec) {
                              if (!ec && !stopped_accepting)
                                accept_one(at);
                            });
}

void server::impl::accept_one(std::size_t at) {
  if (!has_room()) {
    make_room();
    return rest(at);
  }
  auto client = accept_from(listening[at]->native_handle());
  if (client.fd >= 0) {
    open(std::move(client));
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    const int error = errno;
    if (stats->accept_errors.fetch_add(1) % 100 == 0)
      log::warn("http_accept_failed", {{"why", std::strerror(error)}});
    make_room();
    return rest(at);
  } // anything else concerns one client, or another process was faster
  wait_for_client(at);
}

void server::impl::open(accepted_socket client) {
  stats->accepted.fetch_add(1);
  stats->open.fetch_add(1);
  if (calls->connections)
    calls->connections(1);
  const auto number = ++next_number;
  event_loop& loop = *loops[number % loops.size()];
  connection_setup setup;
  tls_context context;
  {
    const std::lock_guard lock{mutex};
    setup.limits = limits;
    setup.timeouts = timeouts;
    context = tls;
  }
  setup.calls = calls;
  setup.length_required = options.length_required;
  setup.stats = stats;
  setup.loop = loop.face;
  setup.peer = std::move(client.peer);
  setup.peer_port = client.port;
  setup.tls = context != nullptr;
  setup.number = number;
  // The socket is closed even if the loop never runs this.
  std::shared_ptr<int> fd{new int{client.fd}, [](int* p) {
                            if (*p >= 0)
                              ::close(*p);
                            delete p;
                          }};
  auto begin = [this, &loop, number, fd, context = std::move(context),
                setup = std::move(setup)]() mutable {
    auto ended = [this, &loop, number] {
      loop.face->post([this, &loop, number] { one_ended(loop, number); });
    };
    auto c = open_connection(loop.context, std::exchange(*fd, -1), std::move(setup), context,
                             std::move(ended));
    loop.connections.emplace(number, c);
    if (draining.load())
      c->drain();
  };
  if (&loop == loops[0].get())
    begin();
  else
    loop.face->post(std::move(begin));
}

void server::impl::one_ended(event_loop& loop, std::uint64_t number) {
  loop.connections.erase(number);
  if (calls->connections)
    calls->connections(-1);
  const std::lock_guard lock{mutex};
  stats->open.fetch_sub(1);
  if (stats->full.exchange(false))
    loops[0]->face->post([this] { wake_up(); });
  all_ended.notify_all();
}

void server::impl::make_room() {
  stats->full.store(true); // answers close their connections meanwhile
  for (auto& loop : loops)
    loop->face->post([l = loop.get()] { l->close_longest_idle(); });
}

/// Accepts again after a while, or as soon as a connection has ended.
void server::impl::rest(std::size_t at) {
  resting[at] = 1;
  if (std::exchange(paused, true))
    return;
  pause->expires_after(accept_pause);
  pause->async_wait([this](const error_code& ec) {
    if (!ec)
      wake_up();
  });
}

void server::impl::wake_up() {
  if (!std::exchange(paused, false) || stopped_accepting)
    return;
  stats->full.store(false);
  error_code ignored;
  pause->cancel(ignored);
  for (std::size_t i = 0; i < listening.size(); ++i)
    if (std::exchange(resting[i], char{0}))
      accept_one(i);
}

bool server::impl::wait_until_ended(std::chrono::milliseconds most) {
  std::unique_lock lock{mutex};
  return all_ended.wait_for(lock, most, [this] { return stats->open.load() == 0; });
}

// --- face ---------------------------------------------------------------------------------------

server::server(std::unique_ptr<impl> i) : impl_{std::move(i)} {
}

result<std::unique_ptr<server>> server::start(options opt, callbacks calls) {
  if (!calls.handler)
    return fail(ec::bad_argument, "an HTTP server needs a handler");
  if (opt.threads == 0 || opt.threads > 256)
    return fail(ec::bad_argument, "{} HTTP threads: 1 to 256 are possible", opt.threads);
  auto made = std::make_unique<impl>();
  made->limits = opt.limits;
  made->timeouts = opt.timeouts;
  made->connections_max = opt.limits.connections;
  made->calls = std::make_shared<const callbacks>(std::move(calls));
  for (unsigned i = 0; i < opt.threads; ++i)
    made->loops.push_back(std::make_unique<event_loop>());
  if (!opt.tls.empty()) {
    DI_TRY(made->tls, load_tls(opt.tls));
  }
  made->options = std::move(opt);
  DI_TRY_VOID(made->adopt_listening());
  made->start_threads();
  return std::unique_ptr<server>{new server{std::move(made)}};
}

server::~server() {
  stop(std::chrono::milliseconds{0});
}

std::uint16_t server::port() const {
  return impl_->port;
}

counts server::count() const {
  const auto& s = *impl_->stats;
  return {s.accepted,  s.open, s.busy,          s.requests, s.refused,
          s.timed_out, s.gone, s.accept_errors, s.bytes_in, s.bytes_out};
}

void server::stop_accepting() {
  impl_->loops[0]->face->post([i = impl_.get()] {
    i->stopped_accepting = true;
    i->listening.clear();
    error_code ignored;
    i->pause->cancel(ignored);
  });
}

void server::drain() {
  impl_->draining = true;
  stop_accepting();
  for (auto& loop : impl_->loops)
    loop->face->post([l = loop.get()] { l->each_connection([](connection& c) { c.drain(); }); });
}

bool server::stop(std::chrono::milliseconds deadline) {
  {
    const std::lock_guard lock{impl_->mutex};
    if (std::exchange(impl_->stopped, true))
      return true;
  }
  drain();
  const bool clean = impl_->wait_until_ended(deadline);
  for (auto& loop : impl_->loops)
    loop->face->post([l = loop.get()] { l->each_connection([](connection& c) { c.abort(); }); });
  impl_->wait_until_ended(abort_wait);
  for (auto& loop : impl_->loops) {
    loop->face->close();
    loop->work.reset();
    loop->context.stop();
  }
  for (auto& loop : impl_->loops)
    loop->thread.join();
  for (auto& loop : impl_->loops)
    loop->connections.clear();
  return clean;
}

result<void> server::reload_tls(const tls_files& files) {
  if (files.empty() != impl_->options.tls.empty())
    return fail(ec::bad_argument, "TLS can be renewed, but not switched on or off while running");
  if (files.empty())
    return {};
  DI_TRY(auto context, load_tls(files));
  const std::lock_guard lock{impl_->mutex};
  impl_->tls = std::move(context);
  return {};
}

void server::reload(const limits& l, const timeouts& t) {
  const std::lock_guard lock{impl_->mutex};
  impl_->limits = l;
  impl_->timeouts = t;
  impl_->connections_max = l.connections;
}

} // namespace di::http
