// SPDX-License-Identifier: Apache-2.0
#include "messaging/bus/link.hpp"

#include "messaging/base/limits.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/wire/frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace di::bus {
namespace {

int milliseconds(std::chrono::milliseconds d) {
  return static_cast<int>(d.count());
}

bool over_tcp(const std::string& endpoint) {
  return endpoint.starts_with("tcp://");
}

} // namespace

link::link(peer who, const link_options& options, bus_counters& counters)
    : who_{std::move(who)}, options_{options}, counters_{counters} {
}

// --- credit -----------------------------------------------------------------------------------

bool link::reserve(lane l, std::uint64_t bytes) noexcept {
  lane_state& s = lane_of(l);
  const auto i = static_cast<std::size_t>(l);
  const std::uint64_t before = s.bytes_in_flight.fetch_add(bytes);
  const std::uint64_t mails = s.mails_in_flight.fetch_add(1);
  const bool fits = before + bytes <= options_.credit_bytes[i] || before == 0;
  if (fits && mails < options_.credit_mails[i])
    return true;
  forget(s, bytes, 1);
  s.starved.store(true);
  return false;
}

void link::count(lane l, std::uint64_t bytes) noexcept {
  lane_of(l).bytes_in_flight.fetch_add(bytes);
  lane_of(l).mails_in_flight.fetch_add(1);
}

void link::forget(lane_state& s, std::uint64_t bytes, std::uint64_t mails) noexcept {
  s.bytes_in_flight.fetch_sub(bytes);
  s.mails_in_flight.fetch_sub(mails);
}

void link::granted(lane l, std::uint64_t sequence) {
  lane_state& s = lane_of(l);
  while (!s.sent.empty() && s.sent.front().sequence <= sequence) {
    forget(s, s.sent.front().bytes, s.sent.front().mails);
    s.sent.pop_front();
  }
}

bool link::short_of_credit(lane l) const noexcept {
  const lane_state& s = lane_of(l);
  const auto i = static_cast<std::size_t>(l);
  return s.to_peer
         && (s.starved.load() || s.bytes_in_flight.load() > options_.credit_bytes[i] / 2
             || s.mails_in_flight.load() > options_.credit_mails[i] / 2);
}

bool link::short_of_credit() const noexcept {
  return !lost() && (short_of_credit(lane::control) || short_of_credit(lane::bulk));
}

bool link::asks_for_credit(lane l, instant now) {
  lane_state& s = lane_of(l);
  // While mail is queued, its own delivery will be granted.
  if (!short_of_credit(l) || !s.mails.empty() || now < s.asked)
    return false;
  s.asked = now + limits::credit_probe_wait;
  s.starved.store(false); // the grant frees all that the peer has received
  return true;
}

// --- queues and sockets -----------------------------------------------------------------------

void link::queue(lane l, outgoing&& mail) {
  lane_state& s = lane_of(l);
  if (mail.first)
    s.mails.push_front(std::move(mail));
  else
    s.mails.push_back(std::move(mail));
}

result<void> link::open_lane(lane l, void* context) {
  lane_state& s = lane_of(l);
  const std::string& where = l == lane::control ? who_.control_endpoint : who_.bulk_endpoint;
  socket out{context, ZMQ_DEALER};
  if (!out)
    return fail(ec::limit_exceeded, "no socket for {}: {}", who_.prefix, zmq_strerror(zmq_errno()));
  const std::string id = fmt::format("{}#{:016x}", options_.self.prefix, options_.self.life.v);
  out.set(ZMQ_ROUTING_ID, std::string_view{id});
  out.set(ZMQ_IMMEDIATE, 1); // nothing is queued for a life that never was there
  out.set(ZMQ_SNDHWM, limits::socket_frames_max);
  out.set(ZMQ_LINGER, milliseconds(limits::linger));
  out.set(ZMQ_RECONNECT_IVL, milliseconds(limits::reconnect_wait));
  out.set(ZMQ_RECONNECT_IVL_MAX, milliseconds(limits::reconnect_wait_max));
  out.set(ZMQ_HANDSHAKE_IVL, milliseconds(limits::handshake_timeout));
  if (over_tcp(where)) {
    out.set(ZMQ_HEARTBEAT_IVL, milliseconds(limits::tcp_heartbeat));
    out.set(ZMQ_HEARTBEAT_TIMEOUT, milliseconds(limits::tcp_heartbeat_timeout));
    out.set(ZMQ_CURVE_SERVERKEY, std::string_view{who_.curve_key});
    out.set(ZMQ_CURVE_PUBLICKEY, std::string_view{options_.keys.public_key});
    out.set(ZMQ_CURVE_SECRETKEY, std::string_view{options_.keys.secret_key});
  }
  // One lane's monitor speaks for the process: both lanes end with it.
  if (!monitor_) {
    // A closed socket frees its monitor's name later: no name is used twice.
    static std::atomic<std::uint64_t> monitors{0};
    const std::string name = fmt::format("inproc://link-{}", monitors.fetch_add(1));
    const int events = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED
                       | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL
                       | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    if (zmq_socket_monitor(out.raw(), name.c_str(), events) != 0)
      return fail(ec::io_error, "cannot watch the link to {}: {}", who_.prefix,
                  zmq_strerror(zmq_errno()));
    monitor_ = socket{context, ZMQ_PAIR};
    if (!monitor_)
      return fail(ec::limit_exceeded, "no socket to watch {}", who_.prefix);
    DI_TRY_VOID(monitor_.connect(name));
    doubtful_until_ = real_env().now() + options_.connect_grace;
  }
  DI_TRY_VOID(out.connect(where));
  s.to_peer = std::move(out);
  return {};
}

result<void> link::flush(lane l, void* context) {
  lane_state& s = lane_of(l);
  if (s.mails.empty())
    return {};
  if (!s.to_peer)
    DI_TRY_VOID(open_lane(l, context));
  while (!s.mails.empty()) {
    const std::size_t together = batch_length(s);
    if (!(together > 1 ? send_batch(s, together) : send_one(s)))
      return {};
  }
  return {};
}

std::size_t link::batch_length(const lane_state& s) const noexcept {
  std::size_t bytes = wire::header_bytes;
  std::size_t n = 0;
  for (const outgoing& m : s.mails) {
    const std::size_t more = 4 + m.frame.size();
    if (m.first || !m.attachments.empty() || m.frame.size() > limits::batch_item_bytes_max
        || bytes + more > limits::batch_bytes_max)
      break;
    bytes += more;
    ++n;
  }
  return n;
}

bool link::send_batch(lane_state& s, std::size_t count) {
  std::vector<std::span<const std::byte>> items;
  items.reserve(count);
  std::uint64_t frame_bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    items.emplace_back(s.mails[i].frame);
    frame_bytes += s.mails[i].frame.size();
  }
  part p{wire::batch_bytes(count, frame_bytes)};
  wire::write_batch(p.bytes(), options_.self.life, who_.life, s.next_sequence, items);
  const std::size_t size = p.size();
  if (!s.to_peer.send(p, false))
    return false;
  counters_.bytes_sent += size;
  ++counters_.batches_sent;
  counters_.batched_mails_sent += count;
  std::uint64_t credit = 0;
  for (std::size_t i = 0; i < count; ++i) {
    credit += s.mails[i].bytes;
    s.mails[i].slot.sent();
  }
  note_sent(s, credit, count);
  s.mails.erase(s.mails.begin(), s.mails.begin() + static_cast<std::ptrdiff_t>(count));
  return true;
}

bool link::send_one(lane_state& s) {
  outgoing& m = s.mails.front();
  // The bytes stay in the queue until the socket has room: a lent frame could not be taken back.
  int events = 0;
  std::size_t events_size = sizeof events;
  if (zmq_getsockopt(s.to_peer.raw(), ZMQ_EVENTS, &events, &events_size) != 0
      || (events & ZMQ_POLLOUT) == 0)
    return false;
  wire::set_sequence(m.frame, s.next_sequence);
  const std::size_t frame_bytes = m.frame.size();
  part head = frame_bytes > limits::batch_item_bytes_max
                  ? part::lend(std::move(m.frame))
                  : part{std::span<const std::byte>{m.frame}};
  std::uint64_t attached = 0;
  bool sent = s.to_peer.send(head, !m.attachments.empty());
  for (std::size_t i = 0; sent && i < m.attachments.size(); ++i) {
    const std::byte* lies_at = m.attachments[i].data();
    const std::size_t size = m.attachments[i].size();
    part rows = part::lend(m.attachments[i]);
    if (rows.size() != 0 && rows.bytes().data() != lies_at)
      counters_.attachment_bytes_copied += size;
    // Parts after the first never fail: ZeroMQ admits messages whole.
    sent = s.to_peer.send(rows, i + 1 < m.attachments.size());
    attached += size;
  }
  if (!sent) {
    // Writable a moment ago and not now: the connection went away in between. The frame may be
    // gone with it; what waits for its answer is bounced by the verdict on the link.
    reached("bus.send_after_pollout_failed");
    if (m.frame.empty()) {
      forget(s, m.bytes, 1);
      s.mails.pop_front();
      ++counters_.dropped;
    }
    return false;
  }
  m.slot.sent();
  counters_.bytes_sent += frame_bytes + attached;
  counters_.attachment_bytes_sent += attached;
  note_sent(s, m.bytes, 1);
  s.mails.pop_front();
  return true;
}

void link::note_sent(lane_state& s, std::uint64_t bytes, std::size_t mails) {
  ++counters_.frames_sent;
  s.sent.push_back({s.next_sequence++, bytes, static_cast<std::uint32_t>(mails)});
}

std::vector<std::uint64_t> link::drop_queued() {
  std::vector<std::uint64_t> requests;
  for (lane_state& s : lanes_) {
    for (const outgoing& m : s.mails) {
      if (m.request != 0)
        requests.push_back(m.request);
      if (m.first)
        s.greeted = false; // whoever connects later must still be told who we are
      forget(s, m.bytes, 1);
      ++counters_.dropped;
    }
    s.mails.clear();
  }
  return requests;
}

std::vector<std::uint64_t> link::close(bool linger) {
  std::vector<std::uint64_t> requests = drop_queued();
  for (lane_state& s : lanes_)
    if (s.to_peer) {
      zmq_socket_monitor(s.to_peer.raw(), nullptr, 0);
      s.to_peer.set(ZMQ_LINGER, linger ? milliseconds(limits::linger) : 0);
      s.to_peer.close();
    }
  monitor_.close();
  lost_.store(true);
  return requests;
}

void link::drop(lane l, const outgoing& mail) noexcept {
  forget(lane_of(l), mail.bytes, 1);
  ++counters_.dropped;
}

// --- the state of the connection --------------------------------------------------------------

link::event link::read_monitor(instant now) {
  if (!monitor_)
    return event::none;
  part head;
  while (monitor_.receive(head)) {
    std::uint16_t what = 0;
    if (head.size() >= sizeof what)
      std::memcpy(&what, head.bytes().data(), sizeof what);
    for (bool more = head.more(); more;) {
      part rest;
      more = monitor_.receive(rest) && rest.more();
    }
    switch (what) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      doubtful_until_.reset();
      lost_.store(false);
      if (std::exchange(was_up_, true))
        return event::came_back;
      break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      if (!lost_.exchange(true))
        return event::refused;
      break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
    case ZMQ_EVENT_DISCONNECTED:
      // On one host a first handshake that did not end in time says that the host is busy: the
      // connection is tried again within connect_grace.
      if (!was_up_ && !over_tcp(who_.control_endpoint))
        break;
      if (!lost_.load()) {
        const instant end =
            now + (over_tcp(who_.control_endpoint) ? options_.grace_tcp : options_.grace_ipc);
        doubtful_until_ = std::min(doubtful_until_.value_or(end), end);
      }
      break;
    default:
      break;
    }
  }
  return event::none;
}

link::event link::on_time(instant now) {
  if (!doubtful_until_ || now < *doubtful_until_)
    return event::none;
  doubtful_until_.reset();
  return lost_.exchange(true) ? event::none : event::lost;
}

std::optional<instant> link::next_due() const {
  return doubtful_until_;
}

} // namespace di::bus
