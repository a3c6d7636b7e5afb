// SPDX-License-Identifier: Apache-2.0
// The post office of a process: bindings, routes, requests and watches on top of the bus thread.
// Other folders see only post_office.hpp.
#pragma once

#include "messaging/bus/bus_thread.hpp"
#include "messaging/bus/post_office.hpp"
#include "messaging/bus/requests.hpp"
#include "messaging/bus/segment_readers.hpp"
#include "messaging/bus/send_segment.hpp"
#include "messaging/bus/watch_book.hpp"
#include "messaging/proto/bus.hpp"
#include "messaging/wire/codec.hpp"

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <shared_mutex>
#include <unordered_map>

namespace di::bus {

/// Locks: `guard_` protects bindings, routes and links; the books have locks of their own and never
/// call out. No lock is held while a deliver function runs.
class office final : public post_office, private bus_events {
public:
  explicit office(post_office_options options);
  ~office() override;
  result<void> start();

  result<void> bind(const address& path, deliver_fn deliver) override;
  void unbind(const address& path, const error& reason) override;
  result<void> add_route(const peer& p) override;
  void remove_route(const address& prefix, const error& reason) override;
  std::vector<peer> routes() const override;
  void certify_death(incarnation life) override;
  void add_neighbour(incarnation life, int reader) override;
  result<void> post(envelope mail) override;
  std::uint64_t number() override { return next_number_.fetch_add(1); }
  result<void> watch(const address& path, const address& watcher) override;
  void unwatch(const address& path, const address& watcher) override;
  void set_view(epoch view) override { view_.store(view.v); }
  peer self() const override { return bus_.links().self; }
  post_office_stats stats() const override;

private:
  using binding = std::shared_ptr<const deliver_fn>;
  using link_ptr = std::shared_ptr<link>;
  struct route {
    peer who;
    link_ptr to;
  };
  /// Where mail to an address goes.
  struct destination {
    binding local;
    link_ptr remote;
    address prefix; ///< of the route, empty if a hello taught it
  };

  // bus_events, on the bus thread
  void on_mail(const wire::frame_label& label, std::span<const std::byte> body,
               std::span<shared_bytes> attachments) override;
  bool reads_segment_of(incarnation writer) const override { return readers_.knows(writer); }
  result<void> fetch(incarnation writer, const wire::segment_slot& slot,
                     std::span<const std::uint64_t> sizes,
                     std::vector<shared_bytes>& out) override {
    return readers_.fetch(writer, slot, sizes, out);
  }
  void on_unreadable(const wire::frame_label& label, const error& why) override;
  bool retired(incarnation life) const override;
  void on_stale(incarnation sender, incarnation meant) override;
  void on_lost(const link_ptr& l, const error& reason) override;
  void on_unsent(std::uint64_t request, const error& reason) override;
  std::optional<instant> on_time(instant now) override;
  void on_grant_due(incarnation to, std::uint64_t control_sequence,
                    std::uint64_t bulk_sequence) override;

  // posting
  destination find(const address& to) const;
  binding bound(const address& path) const;
  link_ptr link_to(incarnation life) const;
  result<void> post_request(envelope&& mail);
  result<void> post_answer(envelope&& mail);
  result<void> ship(const link_ptr& to, const envelope& mail, bool needs_credit);
  slot_lease slot_for(const link& to, std::span<const shared_bytes> attachments);
  template <message M>
  void tell_bus(const link_ptr& to, M m, const address& watcher = {});

  // receiving
  void take_bus_mail(const wire::frame_label& label, const parcel& body);
  void take_releases(const proto::slots_released& m, incarnation reader);
  void send_releases();
  void take_hello(const proto::hello& m, incarnation meant);
  /// Makes room for a peer that says hello: one that said it and was never written to. On the bus
  /// thread. @pre guard_ is held
  void forget_unused_link();
  void take_watch(const proto::watch_path& m, incarnation watcher_life);
  void take_request(envelope&& mail, const wire::frame_label& label);
  void take_answer(envelope&& mail, const wire::frame_label& label);
  void answer_failure(incarnation life, const address& to, const address& from,
                      std::uint64_t request, const error& why);

  // endings
  void bounce(std::vector<pending_request>&& requests, const error& reason);
  void tell_down(const std::vector<watch_entry>& watches, const error& reason);
  void lose(incarnation life, const error& reason);
  void retire(incarnation life);

  const post_office_options options_;
  bus_counters counters_;
  std::atomic<std::uint64_t> next_number_;
  std::atomic<std::uint64_t> view_{0};

  mutable std::shared_mutex guard_;
  std::unordered_map<address, binding> bindings_;
  std::map<address, route, std::less<>> routes_;
  std::map<address, link_ptr, std::less<>> learned_; ///< by prefix, from hellos
  std::unordered_map<incarnation, link_ptr> links_;
  std::set<incarnation> retired_;
  std::deque<incarnation> retired_order_;

  pending_requests pending_;
  inbound_requests inbound_;
  watch_book watches_;
  std::shared_ptr<send_segment> segment_; ///< set in start(), null: without
  segment_readers readers_;
  bus_thread bus_; ///< last: its thread uses all of the above
};

} // namespace di::bus
