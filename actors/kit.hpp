// SPDX-License-Identifier: Apache-2.0
// The one header for people who add an actor type: a core, a protocol, one DI_REGISTER_ACTOR line.
// doc/contributing.md opens with a complete example.
//
// Handlers that a core may have, by rungs of effort:
//   result<void> on(const M&)                                  a command or fact; an error ends the
//   actor result<A>    on(const Q&)                                  a question; an error is the
//   answer … on(const M&, instant now, outbox& out)                   with effects: send, request,
//   arm, fail, count … on(const M&, const origin&, instant, outbox&)            and who sent it
//   result<void> on(const Q&, reply_to ticket, instant, outbox&)   answered later by
//   out.reply(ticket, …) result<void> on_answer(std::uint64_t tag, result<parcel>, instant,
//   outbox&)   of out.request(…) result<void> on_due(timer, instant, outbox&)               of
//   out.arm(…) result<void> on_any(const parcel&, const origin&, instant, outbox&)           all
//   other mail result<void> start(instant, outbox&)                       once, before any mail
//   void check() const                                         invariants, for tests and the
//   simulator
// All but one `on` per protocol line are optional; `void` may stand for `result<void>`.
#pragma once

#include "actors/actor_type.hpp"
#include "actors/config.hpp"
#include "actors/protocol.hpp"
#include "messaging/base/env.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/outbox.hpp"
#include "messaging/proto/rank.hpp"
#include "messaging/proto/topic.hpp"

/// Read by load_plugin() before it trusts anything else of a shared object. Weak, not inline: an
/// inline variable would be unified with the program's own, and every plugin would look right.
extern "C" {
extern const std::uint32_t di_abi_version __attribute__((weak, visibility("default")));
const std::uint32_t di_abi_version = ::di::kit_abi_version;
}

/// Makes the actor type known to the program that this file is linked into or loaded by. Once per
/// type, outside all namespaces, in a source file.
#define DI_REGISTER_ACTOR(type)                                                                    \
  namespace {                                                                                      \
  [[maybe_unused]] const bool DI_CONCAT(di_enrolled_, __COUNTER__) =                               \
      (::di::enroll_actor(::di::kit_abi_version, &::di::actor_type_of<type>), true);               \
  }
