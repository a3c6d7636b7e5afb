// SPDX-License-Identifier: Apache-2.0
// A core of any type behind one small face: the shell, the simulator and tests drive every actor
// through it, and a user's actor type needs no CAF code.
#pragma once

#include "actors/config.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/outbox.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace di::bus {
class post_office;
}

namespace di {

/// What a new core may know about its place. Built-in cores may take it instead of their config.
struct actor_context {
  address self;
  std::uint64_t life = 1; ///< counts the restarts of this path, from 1
  actor_config config;
  bus::post_office* office = nullptr; ///< of this process; outlives every actor
};

/// Drives one core. Owned by one shell; used on its thread only. Nothing here throws.
class core_handle {
public:
  virtual ~core_handle() = default;

  /// Called once before any mail.
  virtual result<void> start(instant now, outbox& out) = 0;
  /// A tell or a request. Questions are answered (or refused) through `out`. An error ends the
  /// actor.
  virtual result<void> on(const envelope& mail, instant now, outbox& out) = 0;
  /// The answer to outbox::request, or why there is none.
  virtual result<void> on_answer(std::uint64_t tag, result<parcel> answer, instant now,
                                 outbox& out) = 0;
  virtual result<void> on_due(timer which, instant now, outbox& out) = 0;
  /// Checks the core's invariants, if it has a check().
  virtual void check() const = 0;
  /// Wire ids of the protocol lines, in their order.
  virtual std::span<const wire_id> accepts() const noexcept = 0;
};

} // namespace di
