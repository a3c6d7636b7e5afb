// SPDX-License-Identifier: Apache-2.0
// The example actor of doc/contributing.md as a shared object in a running system: a rank process
// (a post office with real sockets) publishes its steps, the meter in the control process hears
// them, fails past its budget, is killed, and is started again by its supervisor.
#include "actors/registrar.hpp"
#include "actors/supervisor.hpp"
#include "actors/topic.hpp"
#include "messaging/proto/rank.hpp"
#include "tests/support/mailbox.hpp"
#include "tests/support/run_dir.hpp"

#include <gtest/gtest.h>

#include <future>
#include <optional>

namespace {

using namespace std::chrono_literals;

// As in token_meter.cpp: a client knows the messages, not the actor.
struct get_meter {
  static constexpr di::wire_id wire{0x8001};
  DI_FIELDS(get_meter)
};
struct meter_reading {
  static constexpr di::wire_id wire{0x8002};
  std::uint64_t tokens = 0;
  DI_FIELDS(meter_reading, m.tokens)
};

std::string plugin(const char* name) {
  return std::string{DI_PLUGIN_DIR} + "/" + name + ".so";
}

std::unique_ptr<di::bus::post_office>
start_office(const di::test::run_dir& dir, const char* prefix, const char* name,
             std::shared_ptr<const di::wire::codec_table> codecs) {
  di::bus::post_office_options o;
  o.prefix = prefix;
  o.life = di::incarnation{di::real_env().random() | 1};
  o.codecs = std::move(codecs);
  const auto where = di::bus::ipc_endpoints(dir.path(), name, o.life).value();
  o.control_endpoint = where.control;
  o.bulk_endpoint = where.bulk;
  o.peers = 8;
  return di::bus::make_post_office(std::move(o)).value();
}

/// Control with TOPIC and a supervised meter; a rank process that publishes and asks.
struct running_system : ::testing::Test {
  running_system() {
    di::actors::load_plugin(plugin("token_meter"), types).value();
    control = start_office(dir, "/control", "control", types.codecs());
    rank = start_office(dir, "/rank/0", "rank0", types.codecs());
    rank->add_route(control->self()).value();
    control->add_route(rank->self()).value();
    rank->bind("/rank/0/client", answers.deliver()).value();
    rank->bind("/rank/0/watcher", facts.deliver()).value();
    system.emplace(di::actors::system_options{}, *control);
    launcher.emplace(*system, types);
    system->spawn_as<di::actors::topic>(di::topic_address, {}).value();
  }

  void supervise(const char* tokens_max, std::uint32_t restarts_max) {
    di::actors::child_spec meter;
    meter.kind = "token_meter";
    meter.path = "/control/meter";
    meter.config = {{"tokens_max", tokens_max, "local4.yaml:9:55"}};
    meter.listen = {"step_finished"};
    meter.restart.restarts_max = restarts_max;
    di::actors::supervisor_options options;
    options.self = "/control/supervisor";
    options.children = {meter};
    options.launcher = &*launcher;
    options.office = control.get();
    di::actors::spawn_options spawn;
    spawn.ended = [this](const di::error& e) { ended.set_value(e); };
    system->spawn_as<di::actors::supervisor>("/control/supervisor", spawn, options).value();
  }

  template <di::message M>
  void tell(const char* to, M m, const char* from = "/rank/0/client") {
    di::envelope mail;
    mail.to = to;
    mail.from = from;
    mail.body = di::parcel::of(std::move(m));
    rank->post(std::move(mail)).value();
  }
  void finish_step(std::size_t tokens) {
    di::proto::step_finished step;
    step.tokens.assign(tokens, 7);
    tell(di::topic_address, std::move(step));
  }
  di::envelope ask_meter() {
    di::envelope mail;
    mail.to = "/control/meter";
    mail.from = "/rank/0/client";
    mail.kind = di::mail_kind::request;
    mail.request = rank->number();
    mail.deadline = di::real_env().now() + 5s;
    mail.body = di::parcel::of(get_meter{});
    rank->post(std::move(mail)).value();
    auto answer = answers.next();
    return answer ? *answer : di::envelope{};
  }
  /// Asks until the reading is `tokens`: publishing and asking are not ordered with each other, and
  /// between two lives nobody answers.
  bool reads(std::uint64_t tokens) {
    const auto end = std::chrono::steady_clock::now() + di::test::patience;
    while (std::chrono::steady_clock::now() < end) {
      const auto answer = ask_meter();
      if (const auto* m = answer.body.as<meter_reading>(); m && m->tokens == tokens)
        return true;
    }
    return false;
  }
  bool restarted(std::uint64_t life) {
    while (auto mail = facts.next())
      if (const auto* m = mail->body.as<di::proto::child_restarted>(); m && m->life == life)
        return true;
    return false;
  }

  di::test::run_dir dir;
  di::actors::registry types = di::actors::make_registry().value();
  std::promise<di::error> ended;
  di::test::mailbox answers, facts;
  std::unique_ptr<di::bus::post_office> control, rank;
  std::optional<di::actors::local_launcher> launcher;
  std::optional<di::actors::system> system; // ends before its office and its launcher
};

TEST_F(running_system, plugin_receives_live_messages_and_survives_its_death) {
  tell(di::topic_address, di::proto::subscribe{"child_restarted", "/rank/0/watcher"});
  supervise("100", 3);
  EXPECT_TRUE(reads(0));
  finish_step(4);
  finish_step(5);
  EXPECT_TRUE(reads(9));

  tell("/control/supervisor", di::proto::kill_child{"/control/meter", "killed by the test"});
  EXPECT_TRUE(restarted(2));
  EXPECT_TRUE(reads(0)) << "a new life starts from zero";
  finish_step(6);
  EXPECT_TRUE(reads(6)) << "still subscribed under the same path";

  finish_step(95); // past its budget: it fails by itself
  EXPECT_TRUE(restarted(3));
  EXPECT_TRUE(reads(0));
}

TEST_F(running_system, plugin_that_keeps_failing_makes_its_supervisor_give_up) {
  supervise("1", 1);
  EXPECT_TRUE(reads(0));
  auto future = ended.get_future();
  for (int i = 0; i < 2'000; ++i) { // a step between two lives is heard by nobody
    finish_step(2);
    if (future.wait_for(10ms) == std::future_status::ready)
      break;
  }
  ASSERT_EQ(future.wait_for(0s), std::future_status::ready);
  EXPECT_EQ(future.get().render(),
            "gave_up: /control/meter: no restart left of 1 in 60000 ms; last "
            "reason: limit_exceeded: tokens_max=1");
}

TEST_F(running_system, plugin_config_is_checked_and_located) {
  supervise("many", 0);
  auto future = ended.get_future();
  ASSERT_EQ(future.wait_for(di::test::patience), std::future_status::ready);
  EXPECT_NE(future.get().what.find("local4.yaml:9:55: config of token_meter at /control/meter: "
                                   "tokens_max: 'many' is no whole number"),
            std::string::npos);
}

TEST(plugin, is_refused_with_another_abi_version) {
  auto types = di::actors::make_registry().value();
  const auto path = plugin("plugin_wrong_abi");
  EXPECT_EQ(di::actors::load_plugin(path, types).error().render(),
            "bad_format: plugin " + path
                + ": built against kit ABI version 999, this program has 1; rebuild it");
  EXPECT_FALSE(types.find("token_meter").ok());
}

TEST(plugin, is_refused_without_an_actor_type) {
  auto types = di::actors::make_registry().value();
  const auto outcome = di::actors::load_plugin(plugin("plugin_without_actor"), types);
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().what.find("registers no actor type"), std::string::npos);
}

TEST(plugin, is_refused_if_it_takes_a_wire_id) {
  auto types = di::actors::make_registry().value();
  di::actors::load_plugin(plugin("token_meter"), types).value();
  const auto outcome = di::actors::load_plugin(plugin("plugin_stolen_id"), types);
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(
      outcome.error().what.find(
          "actor kind 'weather': wire id 0x8001 of message get_weather is taken by get_meter"),
      std::string::npos)
      << outcome.error().what;
}

TEST(plugin, can_be_loaded_into_a_second_registry) {
  for (int i = 0; i < 2; ++i) {
    auto types = di::actors::make_registry().value();
    EXPECT_TRUE(di::actors::load_plugin(plugin("token_meter"), types).ok());
    EXPECT_TRUE(types.find("token_meter").ok());
  }
}

} // namespace
