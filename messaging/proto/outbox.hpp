// SPDX-License-Identifier: Apache-2.0
// Everything a core may cause, as data: a shell carries it out, the simulator queues it, a unit
// test reads it.
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/base/error.hpp"
#include "messaging/proto/parcel.hpp"

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace di {

/// Names a timer of one core; `key` tells timers of one kind apart (a request id, a generation).
struct timer {
  std::uint32_t kind = 0;
  std::uint64_t key = 0;
  friend constexpr auto operator<=>(const timer&, const timer&) = default;
};

/// Ticket to answer a request later than in the handler that got it.
struct reply_to {
  address to;
  std::uint64_t request = 0; ///< 0: the message was no request, answering does nothing
};

/// Who sent a message. Handlers that fence by incarnation or answer by name take it.
struct origin {
  address from;
  incarnation sender{}; ///< of the sending process; 0 = this process
  epoch view{};         ///< membership view of the sender
};

namespace effect {
struct send {
  address to;
  parcel body;
};
struct request {
  address to;
  parcel body;
  std::uint64_t tag = 0;
  duration timeout{};
}; ///< the answer comes as on_answer(tag, …)
struct reply {
  reply_to ticket;
  parcel body;
};
struct refuse {
  reply_to ticket;
  error err;
};
struct arm {
  timer which;
  duration after{};
}; ///< replaces a pending timer of the same name
struct disarm {
  timer which;
};
struct fail {
  error err;
}; ///< ends the actor with this reason; its supervisor decides
struct count {
  std::string_view metric;
  double n = 0;
}; ///< metric: string literal, di_<actor>_<noun>_<unit>
} // namespace effect

using any_effect = std::variant<effect::send, effect::request, effect::reply, effect::refuse,
                                effect::arm, effect::disarm, effect::fail, effect::count>;

/// Collects effects of one handler call. Owned by the caller of the core, used on its thread only.
class outbox {
public:
  template <message M>
  void send(address to, M m) {
    effects_.emplace_back(effect::send{std::move(to), parcel::of(std::move(m))});
  }
  /// Sends a message of any type on; the body is shared.
  void forward(address to, parcel body) {
    effects_.emplace_back(effect::send{std::move(to), std::move(body)});
  }
  template <message M>
  void request(address to, M m, std::uint64_t tag, duration timeout) {
    effects_.emplace_back(effect::request{std::move(to), parcel::of(std::move(m)), tag, timeout});
  }
  template <message M>
  void reply(reply_to ticket, M m) {
    effects_.emplace_back(effect::reply{std::move(ticket), parcel::of(std::move(m))});
  }
  void refuse(reply_to ticket, error e) {
    effects_.emplace_back(effect::refuse{std::move(ticket), std::move(e)});
  }
  void arm(timer which, duration after) { effects_.emplace_back(effect::arm{which, after}); }
  void disarm(timer which) { effects_.emplace_back(effect::disarm{which}); }
  void fail(error e) { effects_.emplace_back(effect::fail{std::move(e)}); }
  void count(std::string_view metric, double n = 1) {
    effects_.emplace_back(effect::count{metric, n});
  }

  /// An effect that was collected earlier and held back.
  void put(any_effect e) { effects_.push_back(std::move(e)); }

  const std::vector<any_effect>& effects() const noexcept { return effects_; }
  std::vector<any_effect> take() noexcept { return std::exchange(effects_, {}); }
  bool empty() const noexcept { return effects_.empty(); }

private:
  std::vector<any_effect> effects_;
};

} // namespace di
