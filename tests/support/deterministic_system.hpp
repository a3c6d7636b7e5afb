// SPDX-License-Identifier: Apache-2.0
// Real shells on one thread with fake time: CAF's test coordinator under an actors::system.
#pragma once

#include "actors/system.hpp"
#include "tests/support/local_office.hpp"

#include <optional>

namespace di::test {

/// Nothing runs until run(), nothing becomes due until advance().
class deterministic_system {
public:
  explicit deterministic_system(actors::trace_fn trace = {});
  ~deterministic_system();

  /// Works off all mail that is there; returns the number of jobs. Fake time stands still.
  std::size_t run();
  /// Moves fake time on in one go, then works off what became due.
  void advance(duration by);

  /// Sends a message as `from`. @errors not_found
  template <message M>
  result<void> tell(const address& to, M m, const address& from = "/test") {
    envelope mail;
    mail.to = to;
    mail.from = from;
    mail.body = parcel::of(std::move(m));
    return office.post(std::move(mail));
  }
  /// Asks, works off all mail, and returns the answer if it is there by then.
  template <message Q>
  std::optional<envelope> ask(const address& to, Q q) {
    envelope mail;
    mail.to = to;
    mail.from = "/test";
    mail.kind = mail_kind::request;
    mail.request = office.number();
    mail.body = parcel::of(std::move(q));
    return ask(std::move(mail));
  }

  local_office office;
  actors::system system;

private:
  std::optional<envelope> ask(envelope mail);

  std::vector<envelope> inbox_; ///< of "/test"
};

/// The answer of ask() as an A, else null.
template <message A>
const A* answer_as(const std::optional<envelope>& mail) {
  return mail && mail->kind == mail_kind::reply ? mail->body.as<A>() : nullptr;
}

/// Why ask() was refused; code ok if it was not.
inline error refusal(const std::optional<envelope>& mail) {
  if (!mail)
    return {ec::deadline_exceeded, "no answer at all"};
  const auto* m = mail->body.as<proto::request_failed>();
  return mail->kind == mail_kind::failure && m ? error{m->code, m->what} : error{ec::ok, {}};
}

} // namespace di::test
