// SPDX-License-Identifier: Apache-2.0
// A post office with actors of control that answer what a test tells them to.
#pragma once

#include "launch/serve/cluster_reader.hpp"
#include "messaging/wire/codec.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace di::serve {

class fake_control {
public:
  fake_control() {
    bus::post_office_options o;
    o.prefix = "/gateway/0";
    o.codecs = std::make_shared<const wire::codec_table>(wire::builtin_codecs());
    auto made = bus::make_post_office(std::move(o));
    EXPECT_TRUE(made.ok());
    office_ = std::move(*made);
    state_.keeper.emplace();
    state_.keeper->view = epoch{3};
    state_.keeper->wanted = 1;
    state_.keeper->ranks.resize(1);
    state_.keeper->ranks[0].state = "member";
    state_.schedule.emplace();
    state_.journal.emplace();
    state_.counters.emplace();
    state_.heat.emplace();
    state_.heat->groups = {{0, 1, 2, {5, 10}, {1, 1}}};
    start();
  }

  bus::post_office& office() { return *office_; }

  void set(const cluster_reading& r) {
    const std::lock_guard lock{guard_};
    state_ = r;
  }
  cluster_reading get() const {
    const std::lock_guard lock{guard_};
    return state_;
  }
  std::vector<std::string> orders() const {
    const std::lock_guard lock{guard_};
    return orders_;
  }
  /// Control is away: nobody is at its paths.
  void stop() {
    for (const char* path : paths)
      office_->unbind(path, {ec::peer_lost, "control has ended"});
  }
  void start() {
    for (const char* path : paths)
      EXPECT_TRUE(office_->bind(path, [this](const envelope& mail) { answer(mail); }).ok());
  }

private:
  static constexpr const char* paths[] = {"/control/keeper", "/control/scheduler",
                                          "/control/journal", "/control/telemetry",
                                          "/control/rebalancer"};

  template <message M>
  void reply(const envelope& mail, M m) {
    envelope back;
    back.to = mail.from;
    back.from = mail.to;
    back.kind = mail_kind::reply;
    back.request = mail.request;
    back.body = parcel::of(std::move(m));
    EXPECT_TRUE(office_->post(std::move(back)).ok());
  }

  void answer(const envelope& mail) {
    const auto now = get();
    if (mail.body.as<proto::get_keeper>() != nullptr)
      return reply(mail, *now.keeper);
    if (mail.body.as<proto::get_schedule>() != nullptr)
      return reply(mail, *now.schedule);
    if (mail.body.as<proto::get_journal>() != nullptr)
      return reply(mail, *now.journal);
    if (mail.body.as<proto::get_snapshot>() != nullptr)
      return reply(mail, *now.counters);
    if (mail.body.as<proto::get_heat>() != nullptr)
      return reply(mail, *now.heat);
    {
      const std::lock_guard lock{guard_};
      if (const auto* k = mail.body.as<proto::kill_member>())
        orders_.push_back("kill " + std::to_string(k->rank.v));
      else if (const auto* s = mail.body.as<proto::scale_group>())
        orders_.push_back("scale " + std::to_string(s->ranks));
      else
        orders_.push_back(std::string{mail.body.name()});
    }
    reply(mail, proto::keeper_done{1, epoch{4}});
  }

  std::unique_ptr<bus::post_office> office_;
  mutable std::mutex guard_;
  cluster_reading state_;
  std::vector<std::string> orders_;
};

} // namespace di::serve
