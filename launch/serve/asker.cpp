// SPDX-License-Identifier: Apache-2.0
// Questions by their numbers.
#include "launch/serve/asker.hpp"

#include "messaging/base/env.hpp"
#include "messaging/proto/bus.hpp"

#include <map>
#include <mutex>

namespace di::serve {

struct asker::desk {
  bus::post_office& office;
  address path;
  std::mutex guard;
  std::map<std::uint64_t, answer_fn> open;

  desk(bus::post_office& o, address p) : office{o}, path{std::move(p)} {}

  void deliver(const envelope& mail) {
    answer_fn answer;
    {
      const std::lock_guard lock{guard};
      const auto found = open.find(mail.request);
      if (found == open.end())
        return;
      answer = std::move(found->second);
      open.erase(found);
    }
    if (const auto* f = mail.body.as<proto::request_failed>())
      answer(fail(error{f->code, f->what}));
    else
      answer(mail.body);
  }
};

result<std::unique_ptr<asker>> asker::open(bus::post_office& office, address path) {
  auto d = std::make_shared<desk>(office, path);
  DI_TRY_VOID(office.bind(path, [d](const envelope& mail) { d->deliver(mail); }));
  return std::unique_ptr<asker>{new asker{std::move(d)}};
}

asker::~asker() {
  desk_->office.unbind(desk_->path, {ec::ok, ""});
  const std::lock_guard lock{desk_->guard};
  desk_->open.clear();
}

void asker::ask(const address& to, parcel question, duration timeout, answer_fn answer) {
  envelope mail;
  mail.to = to;
  mail.from = desk_->path;
  mail.kind = mail_kind::request;
  mail.request = desk_->office.number();
  mail.deadline = real_env().now() + timeout;
  mail.body = std::move(question);
  const auto number = mail.request;
  {
    const std::lock_guard lock{desk_->guard};
    desk_->open[number] = std::move(answer);
  }
  if (const auto sent = desk_->office.post(std::move(mail)); !sent.ok()) {
    envelope failed;
    failed.request = number;
    failed.body = parcel::of(proto::request_failed{sent.error().code, sent.error().what});
    desk_->deliver(failed);
  }
}

} // namespace di::serve
