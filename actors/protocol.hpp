// SPDX-License-Identifier: Apache-2.0
// Contracts of actors as types, checked against the core, and the dispatch made from them.
#pragma once

#include "actors/core_handle.hpp"

#include <array>
#include <concepts>
#include <exception>
#include <type_traits>
#include <utility>

namespace di {

/// Contract line: a command or a fact. An error of its handler ends the actor.
template <message M>
struct reacts_to {
  using in = M;
};

/// Contract line: a question with its answer. An error of its handler is sent back in place of the
/// answer, and the actor goes on.
template <message Q>
struct replies_to {
  template <message A>
  struct with {
    using in = Q;
    using answer = A;
  };
};

/// The contract of an actor type.
template <class... Lines>
struct protocol {
  static constexpr std::array<wire_id, sizeof...(Lines)> ids{Lines::in::wire...};
};

namespace detail {

template <class Core, class M>
concept takes_plain = requires(Core& c, const M& m) {
  c.on(m);
};
template <class Core, class M>
concept takes_effects = requires(Core& c, const M& m, instant now, outbox& out) {
  c.on(m, now, out);
};
template <class Core, class M>
concept takes_origin = requires(Core& c, const M& m, const origin& o, instant now, outbox& out) {
  c.on(m, o, now, out);
};
template <class Core, class M>
concept takes_ticket = requires(Core& c, const M& m, const reply_to& t, instant now, outbox& out) {
  c.on(m, t, now, out);
};
template <class Core, class M>
concept handles = takes_plain<Core, M> || takes_effects<Core, M> || takes_origin<Core, M>;
template <class Core>
concept takes_any = requires(Core& c, const parcel& p, const origin& o, instant now, outbox& out) {
  c.on_any(p, o, now, out);
};

/// Calls `f` and turns "returns nothing" into success.
template <class F>
auto as_result(F&& f) {
  if constexpr (std::is_void_v<decltype(f())>) {
    f();
    return result<void>{};
  } else {
    return f();
  }
}

/// Picks the handler form that the core has for M.
template <class Core, class M>
auto call(Core& core, const M& m, const envelope& mail, instant now, outbox& out) {
  if constexpr (takes_origin<Core, M>)
    return as_result([&] {
      return core.on(m, origin{mail.from, mail.sender, mail.view}, now, out);
    });
  else if constexpr (takes_effects<Core, M>)
    return as_result([&] { return core.on(m, now, out); });
  else
    return as_result([&] { return core.on(m); });
}

template <class Core, class Line>
struct line_call;

template <class Core, class M>
struct line_call<Core, reacts_to<M>> {
  static_assert(handles<Core, M>, "a protocol line reacts_to<M> has no handler: the core needs "
                                  "result<void> on(const M&), on(const M&, instant, outbox&) or "
                                  "on(const M&, const origin&, instant, outbox&)");

  static result<void> run(Core& core, const M& m, const envelope& mail, instant now, outbox& out) {
    if (mail.kind == mail_kind::request) {
      out.refuse(
          {mail.from, mail.request},
          {ec::bad_argument, std::string{M::message_name()} + " is no question to " + mail.to});
      return {};
    }
    if constexpr (handles<Core, M>) {
      static_assert(std::is_same_v<decltype(call(core, m, mail, now, out)), result<void>>,
                    "the handler of a reacts_to<M> line returns result<void> or nothing");
      return call(core, m, mail, now, out);
    } else {
      return {};
    }
  }
};

/// Questions are matched by their members, as `with` is nested and cannot be deduced.
template <class Core, class Line>
requires requires {
  typename Line::answer;
}
struct line_call<Core, Line> {
  using question = typename Line::in;
  using answer = typename Line::answer;
  static constexpr bool deferred = takes_ticket<Core, question>;
  static_assert(deferred || handles<Core, question>,
                "a protocol line replies_to<Q>::with<A> has no handler: the core needs "
                "result<A> on(const Q&), on(const Q&, instant, outbox&), on(const Q&, const "
                "origin&, instant, outbox&), or result<void> on(const Q&, reply_to, instant, "
                "outbox&) to answer later");

  static result<void> run(Core& core, const question& q, const envelope& mail, instant now,
                          outbox& out) {
    const reply_to ticket{mail.from, mail.request};
    if constexpr (deferred) {
      auto outcome = as_result([&] { return core.on(q, ticket, now, out); });
      if (!outcome)
        out.refuse(ticket, outcome.error());
    } else if constexpr (handles<Core, question>) {
      static_assert(std::is_same_v<decltype(call(core, q, mail, now, out)), result<answer>>,
                    "the handler of a replies_to<Q>::with<A> line returns result<A>");
      auto outcome = call(core, q, mail, now, out);
      if (outcome)
        out.reply(ticket, std::move(outcome).value());
      else
        out.refuse(ticket, outcome.error());
    }
    return {};
  }
};

template <class... Lines>
constexpr bool ids_are_unique(const protocol<Lines...>&) {
  for (std::size_t i = 0; i < sizeof...(Lines); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (protocol<Lines...>::ids[i] == protocol<Lines...>::ids[k])
        return false;
  return true;
}

/// Runs `f`; an exception becomes an error that keeps its text.
template <class F>
result<void> guarded(F&& f) noexcept {
  try {
    return f();
  } catch (const std::exception& e) {
    return fail(ec::internal, "exception: {}", e.what());
  } catch (...) {
    return fail(ec::internal, "exception of unknown type");
  }
}

} // namespace detail

/// core_handle over a Core with a Protocol.
template <class Core, class Protocol>
class typed_core;

template <class Core, class... Lines>
class typed_core<Core, protocol<Lines...>> final : public core_handle {
  static_assert(detail::ids_are_unique(protocol<Lines...>{}),
                "two lines of the protocol have the same message");

public:
  template <class... Args>
  explicit typed_core(std::in_place_t, Args&&... args) : core_{std::forward<Args>(args)...} {}

  result<void> start(instant now, outbox& out) override {
    return detail::guarded([&]() -> result<void> {
      if constexpr (requires { core_.start(now, out); })
        return detail::as_result([&] { return core_.start(now, out); });
      else
        return {};
    });
  }

  result<void> on(const envelope& mail, instant now, outbox& out) override {
    return detail::guarded([&] { return dispatch(mail, now, out); });
  }

  result<void> on_answer(std::uint64_t tag, result<parcel> answer, instant now,
                         outbox& out) override {
    return detail::guarded([&]() -> result<void> {
      if constexpr (requires { core_.on_answer(tag, std::move(answer), now, out); })
        return detail::as_result([&] { return core_.on_answer(tag, std::move(answer), now, out); });
      else
        return {};
    });
  }

  result<void> on_due(timer which, instant now, outbox& out) override {
    return detail::guarded([&]() -> result<void> {
      if constexpr (requires { core_.on_due(which, now, out); })
        return detail::as_result([&] { return core_.on_due(which, now, out); });
      else
        return {};
    });
  }

  void check() const override {
    if constexpr (requires { core_.check(); })
      core_.check();
  }

  std::span<const wire_id> accepts() const noexcept override { return protocol<Lines...>::ids; }

  Core& core() noexcept { return core_; }

private:
  result<void> dispatch(const envelope& mail, instant now, outbox& out) {
    result<void> outcome;
    const bool known = (run_line<Lines>(mail, now, out, outcome) || ...);
    if (known)
      return outcome;
    if constexpr (detail::takes_any<Core>)
      if (mail.kind == mail_kind::tell)
        return detail::as_result([&] {
          return core_.on_any(mail.body, origin{mail.from, mail.sender, mail.view}, now, out);
        });
    out.count("di_shell_unknown_messages_total");
    out.refuse({mail.from, mail.request},
               {ec::unknown_message, fmt::format("{} takes no {} ({:#06x})", mail.to,
                                                 mail.body.name(), mail.body.id().v)});
    return {};
  }

  template <class Line>
  bool run_line(const envelope& mail, instant now, outbox& out, result<void>& outcome) {
    const auto* m = mail.body.as<typename Line::in>();
    if (!m)
      return false;
    outcome = detail::line_call<Core, Line>::run(core_, *m, mail, now, out);
    return true;
  }

  Core core_;
};

} // namespace di
