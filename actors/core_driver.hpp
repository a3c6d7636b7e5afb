// SPDX-License-Identifier: Apache-2.0
// Drives one core: mail in, effects out, timers, requests that wait for their answers. Everything
// that a shell does but for threads; no CAF here.
#pragma once

#include "actors/core_handle.hpp"
#include "actors/metrics.hpp"
#include "actors/timer_queue.hpp"
#include "messaging/base/progress.hpp"
#include "messaging/base/trace.hpp"
#include "messaging/bus/post_office.hpp"

#include <functional>
#include <optional>
#include <unordered_map>

namespace di::actors {

/// Sees every envelope that an actor gets or sends.
using trace_fn = std::function<void(const address& self, bool incoming, const envelope& mail)>;

struct driver_options {
  address self;
  bus::post_office* office = nullptr; ///< outlives the driver
  metrics* counters = nullptr;        ///< outlives the driver; null: counts are dropped
  trace_fn trace;                     ///< may be empty
  bool checked = false;               ///< the core's check() runs after every handler
  progress_cell* progress = nullptr;  ///< told of every handler; outlives the driver; may be null
};

/// Owned by one shell, used on its thread only. Every call that may run the core returns an error
/// when the actor must end with it; after that the driver is not used again.
///
/// Order: effects of one call are carried out in their order, after the handler has returned.
/// Effects of a handler that returned an error are dropped; after outbox::fail the others still go
/// out.
class core_driver {
public:
  core_driver(driver_options options, std::unique_ptr<core_handle> core);

  result<void> start(instant now);
  result<void> on(const envelope& mail, instant now);
  /// Fires what is due: timers, and requests whose deadline has passed.
  result<void> on_wake(instant now);
  /// When on_wake() has work next.
  std::optional<instant> next_wake() const;

  core_handle& core() noexcept { return *core_; }
  const address& self() const noexcept { return options_.self; }
  std::size_t requests_open() const noexcept { return requests_.size(); }

private:
  struct open_request {
    std::uint64_t tag = 0;
    address to;
    std::multimap<instant, std::uint64_t>::iterator due;
    std::optional<error> lost; ///< could not be sent; told at the next wake
  };

  result<void> finish(result<void> outcome, outbox& out, instant now);
  void carry_out(any_effect& effect, instant now, std::optional<error>& ended);
  void post(envelope mail);
  void open(effect::request& r, instant now);
  result<void> on_answer(const envelope& mail, instant now);
  result<void> expire(std::uint64_t number, instant now);
  void count(std::string_view metric, double n = 1);
  trace::track_id own_track();

  driver_options options_;
  std::unique_ptr<core_handle> core_;
  timer_queue timers_;
  std::unordered_map<std::uint64_t, open_request> requests_;
  std::multimap<instant, std::uint64_t> deadlines_;
  trace::track_id track_ = 0; ///< 0: not asked for yet
};

} // namespace di::actors
