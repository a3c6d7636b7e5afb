// SPDX-License-Identifier: Apache-2.0
#include "messaging/bus/bus_thread.hpp"

#include "messaging/base/limits.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/proto/bus.hpp"
#include "messaging/wire/codec.hpp"

#include <pthread.h>
#include <signal.h>

namespace di::bus {
namespace {

/// A poll never sleeps longer than this; nothing depends on it.
constexpr auto sleep_max = std::chrono::hours{1};

bool over_tcp(const std::string& endpoint) {
  return endpoint.starts_with("tcp://");
}

} // namespace

bus_thread::bus_thread(bus_thread_options options, bus_events& events, bus_counters& counters)
    : options_{std::move(options)}, events_{events}, counters_{counters} {
}

bus_thread::~bus_thread() {
  stop();
}

// --- start and stop ---------------------------------------------------------------------------

result<void> bus_thread::bind_router(lane l) {
  const bool control = l == lane::control;
  const std::string& where = control ? options_.control_endpoint : options_.bulk_endpoint;
  socket& s = routers_[static_cast<std::size_t>(l)];
  s = socket{context_.raw(), ZMQ_ROUTER};
  if (!s)
    return fail(ec::limit_exceeded, "no socket for {}: {}", where, zmq_strerror(zmq_errno()));
  // Routing ids hold the incarnation: a second connection with the same id is the same life coming
  // back before its old connection was seen to end.
  s.set(ZMQ_ROUTER_HANDOVER, 1);
  s.set(ZMQ_RCVHWM, limits::socket_frames_max);
  s.set(ZMQ_LINGER, 0);
  s.set(ZMQ_HANDSHAKE_IVL, static_cast<int>(limits::handshake_timeout.count()));
  s.set(ZMQ_MAXMSGSIZE, static_cast<std::int64_t>(control ? limits::control_frame_bytes_max
                                                          : limits::attachment_bytes_max));
  if (over_tcp(where)) {
    s.set(ZMQ_CURVE_SERVER, 1);
    s.set(ZMQ_CURVE_SECRETKEY, std::string_view{options_.links.keys.secret_key});
    s.set(ZMQ_ZAP_DOMAIN, std::string_view{"di"});
    s.set(ZMQ_HEARTBEAT_IVL, static_cast<int>(limits::tcp_heartbeat.count()));
    s.set(ZMQ_HEARTBEAT_TIMEOUT, static_cast<int>(limits::tcp_heartbeat_timeout.count()));
  }
  DI_TRY_VOID(s.bind(where));
  std::string reached_at = s.endpoint();
  if (over_tcp(reached_at) && !options_.advertised_host.empty())
    reached_at = "tcp://" + options_.advertised_host + reached_at.substr(reached_at.rfind(':'));
  (control ? options_.links.self.control_endpoint : options_.links.self.bulk_endpoint) =
      std::move(reached_at);
  return {};
}

result<void> bus_thread::start() {
  if (wake_.descriptor() < 0)
    return fail(ec::limit_exceeded, "no descriptor for the bus thread");
  if (!options_.control_endpoint.empty()) {
    const std::size_t sockets = options_.peers * limits::sockets_per_peer + limits::sockets_other;
    if (const int most = context_.get(ZMQ_SOCKET_LIMIT); sockets > static_cast<std::size_t>(most))
      return fail(ec::limit_exceeded, "{} peers need {} sockets, ZeroMQ allows {}", options_.peers,
                  sockets, most);
    context_.set(ZMQ_MAX_SOCKETS, static_cast<int>(sockets));
    context_.set(ZMQ_IO_THREADS, options_.io_threads);
    context_.set(ZMQ_BLOCKY, 0);
    for (const std::string& key : options_.allowed_keys)
      zap_.allow(key);
    if (over_tcp(options_.control_endpoint) || over_tcp(options_.bulk_endpoint))
      DI_TRY_VOID(zap_.start(context_.raw()));
    DI_TRY_VOID(bind_router(lane::control));
    DI_TRY_VOID(bind_router(lane::bulk));
  }
  thread_ = std::thread{[this] { run(); }};
  return {};
}

void bus_thread::stop() {
  if (!thread_.joinable())
    return;
  {
    const std::lock_guard lock{guard_};
    stopping_ = true;
  }
  wake_.notify();
  thread_.join();
}

// --- any thread -------------------------------------------------------------------------------

void bus_thread::post(posted&& p) {
  {
    const std::lock_guard lock{guard_};
    posted_.push_back(std::move(p));
  }
  wake_.notify();
}

void bus_thread::send(std::shared_ptr<link> to, lane l, outgoing&& mail) {
  post({action::mail, std::move(to), l, std::move(mail)});
}

void bus_thread::open(std::shared_ptr<link> l) {
  post({action::open, std::move(l), lane::control, {}});
}

void bus_thread::close(std::shared_ptr<link> l) {
  post({action::close, std::move(l), lane::control, {}});
}

void bus_thread::wake() {
  look_again_.store(true);
  wake_.notify();
}

// --- the loop ---------------------------------------------------------------------------------

void bus_thread::run() {
  // Signals are for the main thread.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "bus");
  for (;;) {
    look_again_.store(false);
    const instant now = real_env().now();
    std::optional<instant> due = events_.on_time(now);
    tend_links(now);
    if (const auto link_due = next_link_due(now); link_due && (!due || *link_due < *due))
      due = link_due;
    wake_.arm();
    bool busy = look_again_.load(); // a deadline came between on_time() and arm()
    {
      const std::lock_guard lock{guard_};
      busy = busy || !posted_.empty();
      if (stopping_)
        break;
    }
    poll(due.value_or(now + sleep_max), !busy);
    wake_.disarm();
    take_posted();
    receive(lane::control);
    receive(lane::bulk);
    take_posted(); // answers to what just came
    counters_.keys_refused += zap_.serve();
  }
  shut_down();
}

void bus_thread::poll(instant until, bool sleep) {
  items_.clear();
  items_.push_back({nullptr, wake_.descriptor(), ZMQ_POLLIN, 0});
  for (const socket& s : routers_)
    if (s)
      items_.push_back({s.raw(), 0, ZMQ_POLLIN, 0});
  if (zap_.raw() != nullptr)
    items_.push_back({zap_.raw(), 0, ZMQ_POLLIN, 0});
  for (const auto& [key, l] : open_) {
    if (l->monitor() != nullptr)
      items_.push_back({l->monitor(), 0, ZMQ_POLLIN, 0});
    for (const lane which : {lane::control, lane::bulk})
      if (l->waits(which))
        items_.push_back({l->socket_of(which), 0, ZMQ_POLLOUT, 0});
  }
  long timeout_ms = 0;
  if (sleep) {
    const duration left = until - real_env().now();
    // Rounded up: waking a moment late is better than a turn for nothing.
    timeout_ms = left.count() <= 0 ? 0 : static_cast<long>((left.count() + 999'999) / 1'000'000);
  }
  zmq_poll(items_.data(), static_cast<int>(items_.size()), timeout_ms);
}

void bus_thread::take_posted() {
  {
    const std::lock_guard lock{guard_};
    batch_.swap(posted_);
  }
  for (posted& p : batch_) {
    link& l = *p.to;
    if (p.what == action::close) {
      unsent(l.close(true), error{ec::peer_lost, "the route to " + l.who().prefix + " is gone"});
      open_.erase(&l);
      continue;
    }
    if (l.lost()) {
      if (p.what == action::mail)
        l.drop(p.which, p.mail);
      if (p.mail.request != 0)
        unsent({p.mail.request}, error{ec::peer_lost, l.who().prefix + " is lost"});
      continue;
    }
    open_.try_emplace(&l, p.to);
    if (l.needs_hello(p.which))
      say_hello(l, p.which);
    if (p.what == action::mail)
      l.queue(p.which, std::move(p.mail));
  }
  batch_.clear();
  flush_links();
}

void bus_thread::flush_links() {
  for (auto at = open_.begin(); at != open_.end();) {
    const std::shared_ptr<link> l = (at++)->second; // the verdict may erase it
    for (const lane which : {lane::control, lane::bulk})
      if (const auto flushed = l->flush(which, context_.raw()); !flushed) {
        l->mark_lost();
        unsent(l->drop_queued(), flushed.error());
        events_.on_lost(l, flushed.error());
      }
  }
}

// --- links ------------------------------------------------------------------------------------

void bus_thread::say_hello(link& l, lane which) {
  const peer& self = options_.links.self;
  const wire::encoded body =
      wire::encode(proto::hello{self.prefix, self.life, self.control_endpoint, self.bulk_endpoint,
                                self.curve_key, events_.reads_segment_of(l.who().life)});
  wire::frame_label label;
  label.id = proto::hello::wire;
  label.sender = self.life;
  label.receiver = l.who().life;
  auto frame = wire::make_frame(label, body.body, {});
  DI_CHECK(frame.ok()); // prefix and endpoints were checked at start
  outgoing mail;
  mail.bytes = frame->size();
  mail.frame = std::move(*frame);
  mail.first = true;
  l.count(which, mail.bytes);
  l.queue(which, std::move(mail));
}

void bus_thread::unsent(const std::vector<std::uint64_t>& requests, const error& reason) {
  for (const std::uint64_t request : requests)
    events_.on_unsent(request, reason);
}

void bus_thread::judge(const std::shared_ptr<link>& l, link::event verdict) {
  switch (verdict) {
  case link::event::none:
    return;
  case link::event::came_back:
    // The peer may have forgotten us, or be another life at the same endpoint.
    for (const lane which : {lane::control, lane::bulk})
      if (l->open(which))
        say_hello(*l, which);
    return;
  case link::event::lost:
  case link::event::refused: {
    const bool refused = verdict == link::event::refused;
    const error reason =
        refused ? error{ec::refused, l->who().prefix + " does not accept our key"}
                : error{ec::peer_lost, "the connection to " + l->who().prefix + " is lost"};
    reached(refused ? "bus.key_refused_by_peer" : "bus.peer_lost");
    ++counters_.peers_lost;
    unsent(l->drop_queued(), reason);
    events_.on_lost(l, reason);
    return;
  }
  }
}

void bus_thread::tend_links(instant now) {
  for (auto at = open_.begin(); at != open_.end();) {
    const std::shared_ptr<link> l = (at++)->second;
    for (link::event e = l->read_monitor(now); e != link::event::none; e = l->read_monitor(now))
      judge(l, e);
    judge(l, l->on_time(now));
    for (const lane which : {lane::control, lane::bulk})
      if (!l->lost() && l->asks_for_credit(which, now))
        say_hello(*l, which);
  }
}

std::optional<instant> bus_thread::next_link_due(instant now) const {
  std::optional<instant> due;
  for (const auto& [key, l] : open_) {
    std::optional<instant> one = l->next_due();
    if (l->short_of_credit() && (!one || now + limits::credit_probe_wait < *one))
      one = now + limits::credit_probe_wait;
    if (one && (!due || *one < *due))
      due = one;
  }
  return due;
}

void bus_thread::shut_down() {
  take_posted();
  // Last words, e.g. why this process ends, may still wait for their connection.
  const instant end = real_env().now() + limits::linger;
  for (instant now = real_env().now(); now < end; now = real_env().now()) {
    items_.clear();
    for (const auto& [key, l] : open_)
      for (const lane which : {lane::control, lane::bulk})
        if (l->waits(which) && !l->lost())
          items_.push_back({l->socket_of(which), 0, ZMQ_POLLOUT, 0});
    if (items_.empty())
      break;
    zmq_poll(items_.data(), static_cast<int>(items_.size()), (end - now).count() / 1'000'000 + 1);
    flush_links();
  }
  for (const auto& [key, l] : open_)
    static_cast<void>(l->close(true));
  open_.clear();
  for (socket& s : routers_)
    s.close();
  zap_.stop();
}

} // namespace di::bus
