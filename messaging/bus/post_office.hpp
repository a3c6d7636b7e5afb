// SPDX-License-Identifier: Apache-2.0
// Delivery by address: to an actor of this process, or over ZeroMQ to the process that a route
// names.
#pragma once

#include "messaging/base/limits.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/parcel.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace di::wire {
class codec_table;
}

namespace di::bus {

/// Where a process can be reached. Two sockets, so that a heartbeat never waits behind a tensor.
struct peer {
  address prefix;     ///< all paths at or below it live there, e.g. "/rank/3" or "/control"
  incarnation life{}; ///< frames for another life are refused
  std::string control_endpoint; ///< ipc:// or tcp://
  std::string bulk_endpoint;
  std::string curve_key; ///< server's public key (Z85), empty on ipc
  friend bool operator==(const peer&, const peer&) = default;
};

/// Hands an envelope to an actor of this process. Called on any thread; must not block or throw.
using deliver_fn = std::function<void(envelope)>;

/// Counters since the start; each only grows.
struct post_office_stats {
  std::uint64_t sent = 0;     ///< envelopes accepted by post(), local ones too
  std::uint64_t received = 0; ///< envelopes that came from other processes
  std::uint64_t dropped = 0;  ///< tells without a receiver, late answers, mail of lost links
  std::uint64_t bounced = 0;  ///< requests that came back as a failure made here
  std::uint64_t bytes_sent = 0, bytes_received = 0; ///< [bytes] frames and attachments on sockets
  std::uint64_t frames_sent = 0;                    ///< zmq messages; a batch is one
  std::uint64_t batches_sent = 0, batched_mails_sent = 0;
  std::uint64_t attachment_bytes_sent = 0; ///< [bytes] handed to the sockets where they lie
  /// [bytes] stays 0: rows leave from where they lie
  std::uint64_t attachment_bytes_copied = 0;
  /// [bytes] received attachments that were copied once because they lay unaligned (small ones)
  std::uint64_t attachment_bytes_realigned = 0;
  std::uint64_t malformed = 0;     ///< frames or bodies that were refused
  std::uint64_t stale_frames = 0;  ///< frames for another life, or from a retired one
  std::uint64_t sequence_gaps = 0; ///< frames that never arrived, and repeated ones
  std::uint64_t peers_lost = 0;
  std::uint64_t keys_refused = 0; ///< handshakes that the allow-list refused
  std::uint64_t segment_mails_sent = 0, segment_mails_received = 0; ///< through shared memory
  std::uint64_t segment_bytes_sent = 0;  ///< [bytes] of attachments copied into the own segment
  std::uint64_t segment_full = 0;        ///< mails that found no room there and went in frames
  std::uint64_t segment_refused = 0;     ///< descriptors and releases that named no such slot
  std::uint64_t segment_overwritten = 0; ///< stays 0: slots that changed while they were read
  std::uint64_t segment_slots = 0;       ///< now held by readers or on the way; shrinks too
  std::uint64_t segment_slot_bytes = 0;  ///< [bytes] of them
};

/// One per process; all calls are thread-safe. Owns the bus thread, which alone touches sockets.
///
/// Order: envelopes of one sender to one receiver arrive in the order of the post() calls, per
/// socket class: messages that have shared_bytes fields travel on the bulk socket, all others on
/// the control socket; between the two there is no order. Bounds: mail in flight per peer is
/// limited in bytes and envelopes by credits (limits.hpp); past them post() of tells and requests
/// fails with limit_exceeded, replies always pass: their room was reserved by the request. post()
/// never blocks.
class post_office {
public:
  virtual ~post_office() = default;

  /// Registers an actor of this process, at any path. A deliver function may still be called for a
  /// moment after unbind(). @errors duplicate, bad_argument, limit_exceeded
  virtual result<void> bind(const address& path, deliver_fn deliver) = 0;
  /// Removes it: unanswered requests to it bounce with `reason`, later ones with not_found, and
  /// watchers of the path are told. A reason of ec::ok (planned end) bounces with unavailable.
  virtual void unbind(const address& path, const error& reason) = 0;

  /// Adds or replaces the process that owns a prefix; a new life of a known prefix first loses the
  /// old one. Several prefixes may name the same process. @errors bad_argument, limit_exceeded
  virtual result<void> add_route(const peer& p) = 0;
  /// Declares a process lost: its pending requests bounce with `reason`, its watchers are told.
  virtual void remove_route(const address& prefix, const error& reason) = 0;
  /// A process that read this one's segment is dead for certain (its node process has reaped it):
  /// what it held may be used again. A lost link or a removed route is no such certainty.
  virtual void certify_death(incarnation /*life*/) {}
  /// A neighbour's segment that was made after this office had started. Its owner uses it for mail
  /// to this process once their link is made anew. @param reader  read-only, taken over
  virtual void add_neighbour(incarnation /*life*/, int /*reader*/) {}
  virtual std::vector<peer> routes() const = 0;

  /// Sends. Requests need a deadline and a fresh number(). If post() fails nothing was sent and
  /// nothing comes back. Once it has accepted a request, `from` gets exactly one answer: the reply,
  /// or mail_kind::failure with proto::request_failed when the receiver refused, ended or was lost,
  /// or the deadline passed. Replies go to the life that asked, whatever its address names now; a
  /// second or late answer is dropped. A local path wins over routes, the longest prefix among
  /// routes. @errors not_found, limit_exceeded, peer_lost, unknown_message, bad_argument
  virtual result<void> post(envelope mail) = 0;
  /// A fresh request number of this process; never 0, and no life repeats those of another.
  virtual std::uint64_t number() = 0;

  /// `watcher` (an actor of this process) gets proto::actor_down as a tell once when `path`, an
  /// actor or the prefix of a process, ends or becomes unreachable; at once if it is unknown.
  /// Watching the same path twice from one watcher is one watch. @errors not_found: watcher is not
  /// bound here; limit_exceeded
  virtual result<void> watch(const address& path, const address& watcher) = 0;
  virtual void unwatch(const address& path, const address& watcher) = 0;

  /// The membership view that outgoing envelopes carry when they name none.
  virtual void set_view(epoch view) = 0;

  /// How others reach this process.
  virtual peer self() const = 0;
  virtual post_office_stats stats() const = 0;
};

/// Keys of one process for tcp (CURVE), in Z85: 40 characters each.
struct curve_keys {
  std::string public_key;
  std::string secret_key;
};

/// Fresh keys from the operating system's randomness. @errors internal: libzmq without CURVE
result<curve_keys> make_curve_keys();

/// Shared memory between processes of one host (segment.hpp). Attachments of a mail go through the
/// sender's segment if they are large enough, there is room and the receiver has said that it
/// reads it; else they travel as frames. Receivers see no difference.
struct segment_options {
  int own = -1; ///< writable descriptor of this process's segment, taken over; -1: sends in frames
  struct neighbour {
    incarnation life{};
    int reader = -1; ///< read-only descriptor of its segment, taken over
  };
  std::vector<neighbour> neighbours;
  std::size_t mail_bytes_min = limits::segment_mail_bytes_min;
};

struct post_office_options {
  address prefix;     ///< of this process, e.g. "/rank/3"
  incarnation life{}; ///< 0: drawn at random
  /// Endpoints to bind, ipc:// or tcp:// ("tcp://127.0.0.1:*" takes a free port). Both empty: mail
  /// stays inside this process.
  std::string control_endpoint;
  std::string bulk_endpoint;
  /// Host by which others reach tcp endpoints of this process, if they are bound to all interfaces
  /// ("tcp://*:0"); empty: as bound.
  std::string advertised_host;
  /// Own keys; needed for tcp and refused without.
  curve_keys keys;
  /// Public keys of processes that may connect over tcp; keys of added routes are allowed as well.
  std::vector<std::string> allowed_keys;
  /// Never null; filled before, not changed after.
  std::shared_ptr<const wire::codec_table> codecs;
  std::size_t peers = limits::peers_default; ///< descriptors and sockets are reserved for so many
  std::size_t control_credit_bytes = limits::control_credit_bytes;
  std::size_t control_credit_mails = limits::control_credit_mails;
  std::size_t bulk_credit_bytes = limits::bulk_credit_bytes;
  std::size_t bulk_credit_mails = limits::bulk_credit_mails;
  duration connect_grace = limits::connect_grace;
  duration reconnect_grace_ipc = limits::reconnect_grace_ipc;
  duration reconnect_grace_tcp = limits::reconnect_grace_tcp;
  int io_threads = 1; ///< of ZeroMQ; more for bulk under CURVE
  segment_options segments;
};

/// Starts a post office: raises descriptor limits, binds, starts the bus thread. The destructor
/// sends what is queued for at most limits::linger and drops the rest.
/// @errors bad_argument, limit_exceeded (names the descriptors needed), io_error (bind), refused
/// (ipc directory open to others, tcp without keys, a segment that has another writer)
result<std::unique_ptr<post_office>> make_post_office(post_office_options options);

/// "ipc://<dir>/<name>-<incarnation hex>.{c,b}.sock". @errors limit_exceeded: path too long for a
/// unix socket
struct endpoints {
  std::string control;
  std::string bulk;
};
result<endpoints> ipc_endpoints(const std::string& dir, std::string_view name, incarnation life);

} // namespace di::bus
