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

/// Keys of sockets: links have their address.
enum : std::uint64_t { key_wake, key_control, key_bulk, key_zap, key_faults, key_first_link };

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
  if (wake_.descriptor() < 0 || !sockets_)
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
    for (std::size_t i = 0; i < lanes; ++i)
      DI_TRY_VOID(sockets_.add(routers_[i].raw(), key_control + i));
    if (zap_.raw() != nullptr)
      DI_TRY_VOID(sockets_.add(zap_.raw(), key_zap));
  }
  DI_TRY_VOID(sockets_.add_descriptor(wake_.descriptor(), key_wake));
  faults_ = fault_gate::from_environment(options_.links.self.prefix);
  if (faults_ && faults_->descriptor() >= 0)
    DI_TRY_VOID(sockets_.add_descriptor(faults_->descriptor(), key_faults));
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
    tend_all_ = look_again_.exchange(false) || tend_all_;
    const instant now = real_env().now();
    std::optional<instant> due = events_.on_time(now);
    tend_links(now);
    take_held(now);
    flush_links(); // hellos of the above
    if (links_due_ && (!due || *links_due_ < *due))
      due = links_due_;
    if (const auto held = faults_ ? faults_->next_due() : std::nullopt;
        held && (!due || *held < *due))
      due = held;
    wake_.arm();
    bool busy = look_again_.load() || tend_all_ || readable_[0] || readable_[1];
    {
      const std::lock_guard lock{guard_};
      busy = busy || !posted_.empty();
      if (stopping_)
        break;
    }
    poll(due.value_or(now + sleep_max), !busy);
    take_posted();
    for (const lane l : {lane::control, lane::bulk})
      if (bool& readable = readable_[static_cast<std::size_t>(l)]; readable)
        readable = !receive(l);
    take_posted(); // answers to what just came
    counters_.keys_refused += zap_.serve();
  }
  shut_down();
}

void bus_thread::poll(instant until, bool sleep) {
  const duration left = sleep ? until - real_env().now() : duration{};
  bool woken = false;
  for (const std::uint64_t key : sockets_.wait(left)) {
    woken = woken || key == key_wake;
    take_signal(key);
  }
  wake_.disarm(woken);
}

void bus_thread::take_signal(std::uint64_t key) {
  if (key == key_control || key == key_bulk)
    readable_[key - key_control] = true;
  if (key == key_faults)
    faults_->reload();
  if (key < key_first_link)
    return;
  const auto at = open_.find(reinterpret_cast<link*>(key)); // NOLINT: as registered
  if (at == open_.end())
    return;
  const std::shared_ptr<link>& l = at->second;
  for (const lane which : {lane::control, lane::bulk})
    if (l->open(which))
      socket_poll::settle(l->socket_of(which));
  events_of_.push_back(l);
  mark_dirty(l);
}

void bus_thread::take_posted() {
  {
    const std::lock_guard lock{guard_};
    batch_.swap(posted_);
  }
  for (posted& p : batch_) {
    link& l = *p.to;
    if (p.what == action::close) {
      unsent(close_sockets(l), error{ec::peer_lost, "the route to " + l.who().prefix + " is gone"});
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
    mark_dirty(p.to);
  }
  batch_.clear();
  flush_links();
}

void bus_thread::mark_dirty(const std::shared_ptr<link>& l) {
  if (!std::exchange(l->dirty, true))
    dirty_.push_back(l);
}

void bus_thread::flush_links() {
  // A verdict of the office may close links and queue mail, never mark them: one pass is enough.
  for (std::size_t i = 0; i < dirty_.size(); ++i) {
    const std::shared_ptr<link> l = dirty_[i];
    l->dirty = false;
    if (open_.contains(l.get()))
      flush(l);
  }
  dirty_.clear();
}

void bus_thread::flush(const std::shared_ptr<link>& l) {
  for (const lane which : {lane::control, lane::bulk}) {
    result<void> flushed = l->flush(which, context_.raw());
    if (flushed && l->sockets_open() != l->registered) {
      flushed = register_sockets(*l);
      // Its descriptor speaks of what comes after a first look only.
      events_of_.push_back(l);
      tend_all_ = true; // it also has a time to be connected by
    }
    if (!flushed) {
      l->mark_lost();
      unsent(l->drop_queued(), flushed.error());
      events_.on_lost(l, flushed.error());
    }
  }
  tend_all_ = tend_all_ || l->short_of_credit();
}

result<void> bus_thread::register_sockets(link& l) {
  const auto key = reinterpret_cast<std::uint64_t>(&l); // NOLINT: only compared
  for (void* s : {l.socket_of(lane::control), l.socket_of(lane::bulk), l.monitor()})
    if (s != nullptr)
      DI_TRY_VOID(sockets_.add(s, key));
  l.registered = l.sockets_open();
  return {};
}

std::vector<std::uint64_t> bus_thread::close_sockets(link& l) {
  for (void* s : {l.socket_of(lane::control), l.socket_of(lane::bulk), l.monitor()})
    if (s != nullptr)
      sockets_.remove(s);
  l.registered = 0;
  return l.close(true);
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
  if (const auto at = open_.find(&l); at != open_.end())
    mark_dirty(at->second);
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
  for (std::size_t i = 0; i < events_of_.size(); ++i) {
    const std::shared_ptr<link> l = events_of_[i];
    for (link::event e = l->read_monitor(now); e != link::event::none; e = l->read_monitor(now))
      judge(l, e);
    tend_all_ = true;
  }
  events_of_.clear();
  if (!tend_all_ && (!links_due_ || now < *links_due_))
    return;
  tend_all_ = false;
  for (auto at = open_.begin(); at != open_.end();) {
    const std::shared_ptr<link> l = (at++)->second;
    judge(l, l->on_time(now));
    for (const lane which : {lane::control, lane::bulk})
      if (!l->lost() && l->asks_for_credit(which, now))
        say_hello(*l, which);
  }
  links_due_ = next_link_due(now);
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
    bool waiting = false;
    for (const auto& [key, l] : open_)
      for (const lane which : {lane::control, lane::bulk})
        if (l->waits(which) && !l->lost()) {
          waiting = true;
          mark_dirty(l);
        }
    flush_links();
    if (!waiting)
      break;
    for (const std::uint64_t key : sockets_.wait(end - now))
      take_signal(key);
    for (const auto& l : std::exchange(events_of_, {}))
      while (l->read_monitor(now) != link::event::none) {
      }
  }
  for (const auto& [key, l] : open_)
    static_cast<void>(close_sockets(*l));
  open_.clear();
  for (socket& s : routers_)
    s.close();
  zap_.stop();
}

} // namespace di::bus
