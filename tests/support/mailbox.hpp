// SPDX-License-Identifier: Apache-2.0
// A mailbox that a test waits on, with a deadline: stands in for an actor at a post office.
#pragma once

#include "messaging/bus/post_office.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

namespace di::test {

/// Longest wait of any test; only failing tests wait so long.
inline constexpr std::chrono::seconds patience{20};

class mailbox {
public:
  /// To be bound; may outlive the mailbox.
  bus::deliver_fn deliver() {
    return [s = state_](envelope mail) {
      const std::lock_guard lock{s->guard};
      s->mails.push_back(std::move(mail));
      s->arrived.notify_all();
    };
  }

  /// The oldest mail, waiting for it if need be; none after `patience`.
  std::optional<envelope> next(std::chrono::nanoseconds wait = patience) {
    std::unique_lock lock{state_->guard};
    if (!state_->arrived.wait_for(lock, wait, [&] { return !state_->mails.empty(); }))
      return std::nullopt;
    envelope mail = std::move(state_->mails.front());
    state_->mails.pop_front();
    return mail;
  }

  std::size_t size() const {
    const std::lock_guard lock{state_->guard};
    return state_->mails.size();
  }

private:
  struct state {
    std::mutex guard;
    std::condition_variable arrived;
    std::deque<envelope> mails;
  };
  std::shared_ptr<state> state_ = std::make_shared<state>();
};

template <message M>
envelope tell(address to, address from, M m) {
  envelope mail;
  mail.to = std::move(to);
  mail.from = std::move(from);
  mail.body = parcel::of(std::move(m));
  return mail;
}

template <message M>
envelope request(bus::post_office& office, address to, address from, M m,
                 duration timeout = patience) {
  envelope mail = tell(std::move(to), std::move(from), std::move(m));
  mail.kind = mail_kind::request;
  mail.request = office.number();
  mail.deadline = real_env().now() + timeout;
  return mail;
}

/// The answer of an actor that got `asked`.
template <message M>
envelope reply(const envelope& asked, M m) {
  envelope mail = tell(asked.from, asked.to, std::move(m));
  mail.kind = mail_kind::reply;
  mail.request = asked.request;
  return mail;
}

} // namespace di::test
