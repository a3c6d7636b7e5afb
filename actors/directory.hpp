// SPDX-License-Identifier: Apache-2.0
// DIRECTORY: directory_core, and the routes of the control process, which follow its book.
#pragma once

#include "actors/kit.hpp"
#include "engine/core/directory_core.hpp"
#include "messaging/bus/post_office.hpp"

namespace di::actors {

/// What a process announces of itself: its post office's face; node, role and the like are the
/// caller's to fill in.
proto::process_entry to_process(const bus::peer& p);
/// Routes to all prefixes of a process. @errors those of post_office::add_route
result<void> add_routes(bus::post_office& office, const proto::process_entry& p);
void remove_routes(bus::post_office& office, const proto::process_entry& p, const error& reason);

/// Owned by the DIRECTORY shell. A route is in place before anyone is told of its process.
class routed_directory_core {
public:
  routed_directory_core(engine::directory_options options, bus::post_office& office)
      : core_{std::move(options)}, office_{&office} {}

  void start(instant now, outbox& out) { core_.start(now, out); }
  result<proto::announced> on(const proto::announce& m, const origin& from, instant now,
                              outbox& out);
  result<proto::resolved> on(const proto::resolve& m) const { return core_.on(m); }
  result<proto::directory_snapshot> on(const proto::get_directory& m) const { return core_.on(m); }
  void on(const proto::withdrawn& m, instant now, outbox& out) { core_.on(m, now, out); }
  void on_answer(std::uint64_t tag, const result<parcel>& answer, instant now, outbox& out) {
    core_.on_answer(tag, answer, now, out);
  }
  void on_due(timer which, instant now, outbox& out) { core_.on_due(which, now, out); }
  void check() const { core_.check(); }

private:
  engine::directory_core core_;
  bus::post_office* office_;
};

struct directory {
  static constexpr auto kind = "directory";
  using core = routed_directory_core;
  using protocol =
      di::protocol<replies_to<proto::announce>::with<proto::announced>, // a process joins
                   replies_to<proto::resolve>::with<proto::resolved>,   // who owns a path
                   replies_to<proto::get_directory>::with<proto::directory_snapshot>, // all
                                                                                      // processes
                   reacts_to<proto::withdrawn>>; // a life has ended
};

} // namespace di::actors
