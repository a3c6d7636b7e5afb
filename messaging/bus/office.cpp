// SPDX-License-Identifier: Apache-2.0
// Bindings, routes, watches and what happens when something ends. Posting is in office_post.cpp,
// receiving in office_receive.cpp.
#include "messaging/bus/office.hpp"

#include "messaging/base/limits.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/bus/start_checks.hpp"
#include "messaging/proto/bus.hpp"

#include <fmt/format.h>

namespace di::bus {
namespace {

/// Prefixes become part of routing ids, which have at most 255 bytes.
constexpr std::size_t prefix_bytes_max = 200;

bool is_path(const address& text) {
  return text.size() > 1 && text.front() == '/' && text.back() != '/'
         && text.size() <= limits::address_bytes_max && text.find('#') == address::npos;
}

bus_thread_options thread_options(const post_office_options& o) {
  bus_thread_options out;
  out.links.self.prefix = o.prefix;
  out.links.self.life = o.life;
  out.links.self.curve_key = o.keys.public_key;
  out.links.keys = o.keys;
  out.links.credit_bytes = {o.control_credit_bytes, o.bulk_credit_bytes};
  out.links.credit_mails = {o.control_credit_mails, o.bulk_credit_mails};
  out.links.connect_grace = o.connect_grace;
  out.links.grace_ipc = o.reconnect_grace_ipc;
  out.links.grace_tcp = o.reconnect_grace_tcp;
  out.control_endpoint = o.control_endpoint;
  out.bulk_endpoint = o.bulk_endpoint;
  out.advertised_host = o.advertised_host;
  out.allowed_keys = o.allowed_keys;
  out.peers = o.peers;
  out.io_threads = o.io_threads;
  return out;
}

/// What the requester hears when its receiver ended: a planned end is no fault of the request.
error bounced_by(const error& reason) {
  return reason.code == ec::ok ? error{ec::unavailable, "the receiver has ended"} : reason;
}

} // namespace

office::office(post_office_options options)
    : options_{std::move(options)},
      // Numbers of two lives do not meet: a late answer to an earlier life finds no request.
      next_number_{(real_env().random() >> 2) + 1},
      readers_{[this] { bus_.wake(); }, counters_.segment_overwritten},
      bus_{thread_options(options_), *this, counters_} {
}

office::~office() {
  bus_.stop();
}

result<void> office::start() {
  const owned_fd own{options_.segments.own};
  for (const auto& n : options_.segments.neighbours)
    readers_.add(n.life, owned_fd{n.reader});
  if (!is_path(options_.prefix) || options_.prefix.size() > prefix_bytes_max)
    return fail(ec::bad_argument, "\"{}\" is no process prefix: \"/...\", at most {} bytes",
                options_.prefix, prefix_bytes_max);
  if (options_.codecs == nullptr)
    return fail(ec::bad_argument, "{} has no codec table", options_.prefix);
  DI_TRY_VOID(check_start(options_));
  if (own.get() >= 0) {
    DI_TRY(segment_, send_segment::open(own.get()));
  }
  return bus_.start();
}

// --- bindings ---------------------------------------------------------------------------------

result<void> office::bind(const address& path, deliver_fn deliver) {
  if (!is_path(path))
    return fail(ec::bad_argument, "\"{}\" is no path of an actor", path);
  const std::unique_lock lock{guard_};
  if (bindings_.size() >= limits::bindings_max)
    return fail(ec::limit_exceeded, "{} actors are bound, no more are allowed", bindings_.size());
  auto made = std::make_shared<const deliver_fn>(std::move(deliver));
  if (!bindings_.try_emplace(path, std::move(made)).second)
    return fail(ec::duplicate, "{} is bound already", path);
  return {};
}

void office::unbind(const address& path, const error& reason) {
  {
    const std::unique_lock lock{guard_};
    if (bindings_.erase(path) == 0)
      return;
  }
  watches_.drop_watcher(path);
  bounce(pending_.take_local(path), bounced_by(reason));
  for (const inbound_request& r : inbound_.take_to(path))
    answer_failure(r.life, r.requester, path, r.number, bounced_by(reason));
  tell_down(watches_.take_local(path), reason);
}

office::binding office::bound(const address& path) const {
  const std::shared_lock lock{guard_};
  const auto at = bindings_.find(path);
  return at == bindings_.end() ? nullptr : at->second;
}

// --- routes -----------------------------------------------------------------------------------

result<void> office::add_route(const peer& p) {
  if (!is_path(p.prefix) || p.prefix.size() > prefix_bytes_max)
    return fail(ec::bad_argument, "\"{}\" is no process prefix", p.prefix);
  if (p.life == options_.life)
    return {}; // this process under a further name: its actors are found by their bindings
  if (p.life.v == 0)
    return fail(ec::bad_argument, "the route to {} names no incarnation", p.prefix);
  if (options_.control_endpoint.empty())
    return fail(ec::bad_argument, "{} has no sockets: no route to {}", options_.prefix, p.prefix);
  DI_TRY_VOID(check_peer(p, options_));
  std::optional<incarnation> replaced;
  {
    const std::shared_lock lock{guard_};
    if (const auto at = routes_.find(p.prefix); at != routes_.end()) {
      if (at->second.who == p)
        return {};
      replaced = at->second.who.life;
    }
  }
  if (replaced)
    remove_route(p.prefix,
                 error{ec::peer_lost, fmt::format("{} is now life {:016x}", p.prefix, p.life.v)});
  if (!p.curve_key.empty())
    bus_.allow_key(p.curve_key);
  link_ptr fresh;
  {
    const std::unique_lock lock{guard_};
    link_ptr& to = links_[p.life];
    if (to != nullptr
        && (to->who().control_endpoint != p.control_endpoint
            || to->who().bulk_endpoint != p.bulk_endpoint || to->who().curve_key != p.curve_key)) {
      // A hello said otherwise; the directory is right.
      fresh = std::exchange(to, nullptr);
    }
    if (to == nullptr) {
      if (links_.size() > options_.peers) {
        links_.erase(p.life);
        return fail(ec::limit_exceeded, "{} peers are known, post_office_options::peers is {}",
                    links_.size(), options_.peers);
      }
      to = std::make_shared<link>(p, bus_.links(), counters_);
    }
    to->learned.store(false);
    learned_.erase(p.prefix);
    retired_.erase(p.life);
    routes_.insert_or_assign(p.prefix, route{p, to});
  }
  if (fresh != nullptr)
    bus_.close(std::move(fresh));
  return {};
}

void office::remove_route(const address& prefix, const error& reason) {
  incarnation life{};
  link_ptr closed;
  {
    const std::unique_lock lock{guard_};
    const auto at = routes_.find(prefix);
    if (at == routes_.end())
      return;
    life = at->second.who.life;
    routes_.erase(at);
    const bool others = std::any_of(routes_.begin(), routes_.end(),
                                    [&](const auto& r) { return r.second.who.life == life; });
    if (!others) {
      if (const auto l = links_.find(life); l != links_.end()) {
        closed = std::move(l->second);
        links_.erase(l);
      }
      retire(life);
    }
  }
  if (closed != nullptr) {
    bus_.close(closed);
    lose(life, reason);
    return;
  }
  bounce(pending_.take_routed_by(prefix), bounced_by(reason));
  tell_down(watches_.take_prefix(prefix), reason);
}

std::vector<peer> office::routes() const {
  const std::shared_lock lock{guard_};
  std::vector<peer> out;
  for (const auto& [prefix, r] : routes_)
    out.push_back(r.who);
  return out;
}

void office::certify_death(incarnation life) {
  if (segment_ != nullptr)
    segment_->free_reader(life);
  readers_.forget(life);
}

void office::add_neighbour(incarnation life, int reader) {
  readers_.add(life, owned_fd{reader});
}

void office::retire(incarnation life) {
  readers_.forget(life);
  if (!retired_.insert(life).second)
    return;
  retired_order_.push_back(life);
  if (retired_order_.size() > limits::retired_lives_max) {
    retired_.erase(retired_order_.front());
    retired_order_.pop_front();
  }
}

bool office::retired(incarnation life) const {
  const std::shared_lock lock{guard_};
  return retired_.contains(life);
}

office::link_ptr office::link_to(incarnation life) const {
  const std::shared_lock lock{guard_};
  const auto at = links_.find(life);
  return at == links_.end() ? nullptr : at->second;
}

// --- watches ----------------------------------------------------------------------------------

result<void> office::watch(const address& path, const address& watcher) {
  if (bound(watcher) == nullptr)
    return fail(ec::not_found, "{} cannot watch {}: it is not bound here", watcher, path);
  const destination to = find(path);
  watch_entry entry{path, watcher, {}, {}, to.prefix};
  if (to.remote != nullptr)
    entry.target_life = to.remote->who().life;
  DI_TRY(const bool fresh, watches_.add(entry));
  if (!fresh)
    return {};
  if (to.remote != nullptr && !to.remote->lost()) {
    if (path == to.prefix)
      bus_.open(to.remote); // a process is watched by its connection
    else
      tell_bus(to.remote, proto::watch_path{path, watcher});
    // It may have been lost since it was found: then nobody tells us any more.
    if (!to.remote->lost())
      return {};
  }
  // The binding may have gone between find() and add(): look again.
  if (to.remote == nullptr && (bound(path) != nullptr || path == options_.prefix))
    return {};
  if (watches_.remove(path, watcher, {}))
    tell_down({entry}, to.remote != nullptr ? error{ec::peer_lost, to.prefix + " is lost"}
                                            : error{ec::not_found, path + " is not known"});
  return {};
}

void office::unwatch(const address& path, const address& watcher) {
  watches_.remove(path, watcher, {});
}

void office::tell_down(const std::vector<watch_entry>& watches, const error& reason) {
  for (const watch_entry& w : watches) {
    proto::actor_down note{w.path, w.target_life.v == 0 ? options_.life : w.target_life,
                           reason.code, reason.what};
    if (w.watcher_life.v != 0) {
      if (const link_ptr to = link_to(w.watcher_life))
        tell_bus(to, std::move(note), w.watcher);
      continue;
    }
    if (const binding b = bound(w.watcher)) {
      envelope mail;
      mail.to = w.watcher;
      mail.from = w.path;
      mail.body = parcel::of(std::move(note));
      (*b)(std::move(mail));
    }
  }
}

// --- endings ----------------------------------------------------------------------------------

void office::bounce(std::vector<pending_request>&& requests, const error& reason) {
  for (pending_request& r : requests) {
    ++counters_.bounced;
    const binding b = bound(r.from);
    if (b == nullptr) {
      ++counters_.dropped;
      continue;
    }
    envelope mail;
    mail.to = std::move(r.from);
    mail.from = std::move(r.to);
    mail.kind = mail_kind::failure;
    mail.request = r.number;
    mail.body = parcel::of(proto::request_failed{reason.code, reason.what});
    (*b)(std::move(mail));
  }
}

void office::lose(incarnation life, const error& reason) {
  bounce(pending_.take_sent_to(life), bounced_by(reason));
  tell_down(watches_.take_target(life), reason);
  watches_.drop_watcher_life(life);
}

void office::on_lost(const link_ptr& l, const error& reason) {
  log::info("peer_lost", {{"peer", l->who().prefix},
                          {"life", fmt::format("{:016x}", l->who().life.v)},
                          {"why", reason.render()}});
  if (l->learned.load()) {
    const std::unique_lock lock{guard_};
    const auto at = links_.find(l->who().life);
    if (at != links_.end() && at->second == l)
      links_.erase(at);
    if (const auto by_prefix = learned_.find(l->who().prefix);
        by_prefix != learned_.end() && by_prefix->second == l)
      learned_.erase(by_prefix);
    bus_.close(l);
  }
  inbound_.drop_life(l->who().life);
  lose(l->who().life, reason);
}

void office::on_unsent(std::uint64_t request, const error& reason) {
  std::vector<pending_request> one;
  if (auto r = pending_.take(request))
    one.push_back(std::move(*r));
  bounce(std::move(one), reason);
}

std::optional<instant> office::on_time(instant now) {
  std::vector<pending_request> due = pending_.take_due(now);
  for (pending_request& r : due) {
    std::string what = fmt::format("no answer from {} before the deadline", r.to);
    std::vector<pending_request> one;
    one.push_back(std::move(r));
    bounce(std::move(one), error{ec::deadline_exceeded, std::move(what)});
  }
  inbound_.drop_due(now);
  send_releases();
  std::optional<instant> next = pending_.next_due();
  if (const auto other = inbound_.next_due(); other && (!next || *other < *next))
    next = other;
  return next;
}

post_office_stats office::stats() const {
  post_office_stats s;
  s.sent = counters_.sent;
  s.received = counters_.received;
  s.dropped = counters_.dropped;
  s.bounced = counters_.bounced;
  s.bytes_sent = counters_.bytes_sent;
  s.bytes_received = counters_.bytes_received;
  s.frames_sent = counters_.frames_sent;
  s.batches_sent = counters_.batches_sent;
  s.batched_mails_sent = counters_.batched_mails_sent;
  s.attachment_bytes_sent = counters_.attachment_bytes_sent;
  s.attachment_bytes_copied = counters_.attachment_bytes_copied;
  s.attachment_bytes_realigned = counters_.attachment_bytes_realigned;
  s.malformed = counters_.malformed;
  s.stale_frames = counters_.stale_frames;
  s.sequence_gaps = counters_.sequence_gaps;
  s.peers_lost = counters_.peers_lost;
  s.keys_refused = counters_.keys_refused;
  s.segment_mails_sent = counters_.segment_mails_sent;
  s.segment_mails_received = counters_.segment_mails_received;
  s.segment_bytes_sent = counters_.segment_bytes_sent;
  s.segment_full = counters_.segment_full;
  s.segment_refused = counters_.segment_refused;
  s.segment_overwritten = counters_.segment_overwritten;
  if (segment_ != nullptr) {
    s.segment_slots = segment_->slots();
    s.segment_slot_bytes = segment_->taken_bytes();
  }
  return s;
}

result<std::unique_ptr<post_office>> make_post_office(post_office_options options) {
  if (options.life.v == 0)
    options.life = incarnation{real_env().random() | 1};
  auto made = std::make_unique<office>(std::move(options));
  DI_TRY_VOID(made->start());
  return std::unique_ptr<post_office>{std::move(made)};
}

} // namespace di::bus
