// SPDX-License-Identifier: Apache-2.0
// Delivery by address: to an actor of this process, or over ZeroMQ to the process that a route
// names.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/parcel.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

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

struct post_office_stats {
  std::uint64_t sent = 0, received = 0, dropped = 0, bounced = 0;
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  std::uint64_t attachment_bytes_copied =
      0; ///< stays 0 on the send path: rows leave from where they lie
};

/// One per process; all calls are thread-safe. Owns the bus thread, which alone touches sockets.
///
/// Order: envelopes of one sender to one receiver arrive in the order of the post() calls, per
/// socket class: envelopes that carry shared_bytes travel on the bulk socket, all others on the
/// control socket; between the two there is no order. Bounds: bytes in flight per peer are limited
/// by credits (limits.hpp); past them post() of bulk fails with limit_exceeded, control mail has
/// its own, larger bound. post() never blocks.
class post_office {
public:
  virtual ~post_office() = default;

  /// Registers an actor of this process. @errors duplicate
  virtual result<void> bind(const address& path, deliver_fn deliver) = 0;
  /// Removes it; later mail to it bounces with not_found, and watchers of the path are told.
  virtual void unbind(const address& path, const error& reason) = 0;

  /// Adds or replaces the process that owns a prefix; a new life of a known prefix first loses the
  /// old one.
  virtual result<void> add_route(const peer& p) = 0;
  /// Declares a process lost: its pending requests bounce with peer_lost, its watchers are told.
  virtual void remove_route(const address& prefix, const error& reason) = 0;
  virtual std::vector<peer> routes() const = 0;

  /// Sends. Requests need a deadline; number() gives their request number. A request that cannot be
  /// delivered, that outlives its deadline or whose receiver is lost comes back to `from` as
  /// mail_kind::failure. @errors not_found, limit_exceeded
  virtual result<void> post(envelope mail) = 0;
  /// A fresh request number of this process.
  virtual std::uint64_t number() = 0;

  /// `watcher` gets proto::actor_down once when `path` (an actor or a process prefix) ends; at once
  /// if it is unknown.
  virtual void watch(const address& path, const address& watcher) = 0;

  /// How others reach this process (valid after start).
  virtual peer self() const = 0;
  virtual post_office_stats stats() const = 0;
};

} // namespace di::bus
