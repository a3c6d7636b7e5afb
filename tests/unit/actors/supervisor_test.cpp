// SPDX-License-Identifier: Apache-2.0
// Supervision with real shells on fake time, and with a launcher that stands for processes.
#include "actors/control.hpp"
#include "actors/supervisor.hpp"
#include "actors/topic.hpp"
#include "tests/support/deterministic_system.hpp"

#include <gtest/gtest.h>

#include <map>

namespace {

using namespace std::chrono_literals;
using di::actors::child_spec;
using di::engine::restart_strategy;
using di::test::answer_as;

struct spoil {
  static constexpr di::wire_id wire{0x8301};
  DI_FIELDS(spoil)
};
struct get_age {
  static constexpr di::wire_id wire{0x8302};
  DI_FIELDS(get_age)
};
struct age {
  static constexpr di::wire_id wire{0x8303};
  std::uint64_t life = 0, mails = 0;
  DI_FIELDS(age, m.life, m.mails)
};

class egg_core {
public:
  explicit egg_core(const di::actor_context& context) : life_{context.life} {
    broken_ = context.config.flag("broken", false);
  }
  di::result<void> start(di::instant, di::outbox&) {
    if (broken_)
      return di::fail(di::ec::device_lost, "broken from the start");
    return {};
  }
  di::result<void> on(const spoil&) { return di::fail(di::ec::device_lost, "spoiled"); }
  di::result<age> on(const get_age&) { return age{life_, ++mails_}; }

private:
  std::uint64_t life_, mails_ = 0;
  bool broken_ = false;
};

struct egg {
  static constexpr auto kind = "egg";
  using core = egg_core;
  using protocol = di::protocol<di::reacts_to<spoil>, di::replies_to<get_age>::with<age>>;
};

child_spec spec(const di::address& path, restart_strategy strategy = restart_strategy::one_for_one,
                std::uint32_t restarts_max = 3) {
  child_spec s;
  s.kind = "egg";
  s.path = path;
  s.restart.strategy = strategy;
  s.restart.restarts_max = restarts_max;
  return s;
}

struct supervisor_tree : ::testing::Test {
  supervisor_tree() {
    types.add(di::actor_type_of<egg>()).value();
    launcher.emplace(world.system, types);
  }

  void supervise(std::vector<child_spec> children) {
    di::actors::supervisor_options options;
    options.self = "/s";
    options.children = std::move(children);
    options.launcher = &*launcher;
    options.office = &world.office;
    di::actors::spawn_options spawn;
    spawn.ended = [this](const di::error& e) { ended = e; };
    world.system.spawn_as<di::actors::supervisor>("/s", spawn, std::move(options)).value();
    world.run();
  }
  std::uint64_t life(const di::address& path) {
    const auto mail = world.ask(path, get_age{});
    const auto* a = answer_as<age>(mail);
    return a ? a->life : 0;
  }
  void kill(const di::address& path) {
    world.tell(path, spoil{}).value();
    world.run();
  }

  di::actors::registry types;
  std::optional<di::error> ended;
  std::optional<di::actors::local_launcher> launcher; // outlives the supervisors of `world`
  di::test::deterministic_system world;
};

TEST_F(supervisor_tree, restarts_a_dead_child_with_a_new_life_and_fresh_state) {
  supervise({spec("/s/a"), spec("/s/b")});
  (void)life("/s/a");
  kill("/s/a");
  const auto mail = world.ask("/s/a", get_age{});
  ASSERT_NE(answer_as<age>(mail), nullptr);
  EXPECT_EQ(answer_as<age>(mail)->life, 2U);
  EXPECT_EQ(answer_as<age>(mail)->mails, 1U);
  EXPECT_EQ(life("/s/b"), 1U);
  EXPECT_EQ(world.system.counters().total("di_supervisor_restarts_total"), 1);
}

TEST_F(supervisor_tree, restarts_groups_by_strategy) {
  supervise({spec("/s/a"), spec("/s/b", restart_strategy::rest_for_one),
             spec("/s/c", restart_strategy::one_for_all)});
  kill("/s/b");
  EXPECT_EQ(life("/s/a"), 1U);
  EXPECT_EQ(life("/s/b"), 2U);
  EXPECT_EQ(life("/s/c"), 2U);
  kill("/s/c");
  EXPECT_EQ(life("/s/a"), 2U);
  EXPECT_EQ(life("/s/b"), 3U);
  EXPECT_EQ(life("/s/c"), 3U);
}

TEST_F(supervisor_tree, gives_up_upward_with_the_last_reason) {
  supervise({spec("/s/a", restart_strategy::one_for_one, 1), spec("/s/b")});
  kill("/s/a");
  EXPECT_FALSE(ended.has_value());
  kill("/s/a");
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->render(), "gave_up: /s/a: no restart left of 1 in 60000 ms; last reason: "
                             "device_lost: spoiled");
  EXPECT_TRUE(world.system.paths().empty()) << "its other children ended first";
}

TEST_F(supervisor_tree, hears_nothing_of_children_that_end_with_the_process) {
  int ends = 0;
  const auto child = spec("/s/a");
  const auto end = [&](const di::error&) { ++ends; };
  launcher->start(child, 1, end).value();
  launcher->stop(child, 1, di::error{di::ec::cancelled, "test"});
  world.run();
  EXPECT_EQ(ends, 1);
  launcher->start(child, 2, end).value();
  (void)world.system.stop_all(0s); // it runs below
  world.run();
  EXPECT_TRUE(world.system.paths().empty());
  EXPECT_EQ(ends, 1) << "a supervisor would start it again, or give up";
}

TEST_F(supervisor_tree, waits_out_the_backoff) {
  auto child = spec("/s/a");
  child.restart.backoff_first = child.restart.backoff_max = 1s;
  supervise({child});
  kill("/s/a");
  EXPECT_EQ(life("/s/a"), 0U);
  world.advance(999ms);
  EXPECT_EQ(life("/s/a"), 0U);
  world.advance(300ms); // the wait and a quarter of it at most
  EXPECT_EQ(life("/s/a"), 2U);
}

TEST_F(supervisor_tree, counts_a_failed_start_as_a_death) {
  auto broken = spec("/s/a", restart_strategy::one_for_one, 2);
  broken.config = {{"broken", "true", ""}};
  auto unknown = spec("/s/b");
  unknown.kind = "omelette";
  supervise({broken});
  ASSERT_TRUE(ended.has_value());
  EXPECT_NE(ended->what.find("broken from the start"), std::string::npos) << ended->what;
  ended.reset();
  supervise({unknown});
  ASSERT_TRUE(ended.has_value());
  EXPECT_NE(ended->what.find("unknown actor kind 'omelette'; known are egg"), std::string::npos)
      << ended->what;
}

TEST_F(supervisor_tree, kills_on_command_and_reports) {
  supervise({spec("/s/a")});
  world.tell("/s", di::proto::kill_child{"/s/a", "test"}).value();
  world.tell("/s", di::proto::kill_child{"/s/x", "test"}).value();
  world.run();
  const auto mail = world.ask("/s", di::proto::get_children{});
  const auto* children = answer_as<di::proto::children>(mail);
  ASSERT_NE(children, nullptr);
  ASSERT_EQ(children->entries.size(), 1U);
  const auto& e = children->entries[0];
  EXPECT_EQ(e.path + " " + e.kind + " " + e.state + " " + e.last_reason,
            "/s/a egg running cancelled: test");
  EXPECT_EQ(e.life, 2U);
  EXPECT_EQ(e.restarts, 1U);
  EXPECT_EQ(world.system.counters().total("di_supervisor_kills_ignored_total"), 1);
}

TEST_F(supervisor_tree, ends_children_before_itself_when_told) {
  supervise({spec("/s/a"), spec("/s/b")});
  world.tell("/s", di::proto::stop_children{}).value();
  world.run();
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->code, di::ec::ok);
  EXPECT_TRUE(world.system.paths().empty());
}

TEST_F(supervisor_tree, takes_its_children_along_when_killed) {
  supervise({spec("/s/a"), spec("/s/b")});
  world.system.stop("/s", {di::ec::cancelled, "test"});
  world.run();
  EXPECT_TRUE(world.system.paths().empty());
}

TEST_F(supervisor_tree, publishes_restarts) {
  world.system.spawn_as<di::actors::topic>(di::topic_address, {}).value();
  world.tell(di::topic_address, di::proto::subscribe{"child_restarted", "/listener"}).value();
  std::vector<di::proto::child_restarted> heard;
  world.office
      .bind(
          "/listener",
          [&](const di::envelope& m) { heard.push_back(*m.body.as<di::proto::child_restarted>()); })
      .value();
  supervise({spec("/s/a")});
  kill("/s/a");
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].path, "/s/a");
  EXPECT_EQ(heard[0].life, 2U);
  EXPECT_EQ(heard[0].reason, "device_lost: spoiled");
}

TEST_F(supervisor_tree, starts_user_actors_that_fall_alone) {
  const auto user = [](const char* at, std::uint32_t restarts_max) {
    di::actors::user_actor a;
    a.kind = "egg";
    a.at = at;
    a.restarts_max = restarts_max;
    return a;
  };
  std::vector<di::error> gave_up;
  di::actors::start_user_actors(world.system, *launcher, "/control",
                                {user("/cluster/a", 0), user("/cluster/b", 1)},
                                [&](const di::error& e) { gave_up.push_back(e); })
      .value();
  world.run();
  kill("/cluster/a");
  ASSERT_EQ(gave_up.size(), 1U);
  EXPECT_NE(gave_up[0].what.find("/cluster/a"), std::string::npos);
  kill("/cluster/b");
  EXPECT_EQ(life("/cluster/b"), 2U);
}

TEST_F(supervisor_tree, checks_user_actors_before_anything_starts) {
  di::actors::user_actor a;
  a.kind = "egg";
  a.at = "/cluster/a";
  a.where = "local4.yaml:8:5";
  const auto verdict = [&](const di::actors::user_actor& second) {
    const auto outcome = di::actors::check_user_actors(types, {a, second});
    return outcome ? std::string{"fine"} : outcome.error().render();
  };
  auto b = a;
  EXPECT_EQ(verdict(b), "duplicate: local4.yaml:8:5: two actors at /cluster/a");
  b.at = "/cluster/b";
  EXPECT_EQ(verdict(b), "fine");
  b.listen = {"step_finishd"};
  EXPECT_EQ(verdict(b), "not_found: local4.yaml:8:5: egg at /cluster/b listens to 'step_finishd', "
                        "which no message is called");
  b.listen = {"step_finished"};
  b.config = {{"broken", "perhaps", "local4.yaml:9:20"}};
  EXPECT_EQ(verdict(b), "bad_config: local4.yaml:9:20: config of egg at /cluster/b: broken: "
                        "'perhaps' is neither true nor false");
  b.kind = "omelette";
  EXPECT_EQ(verdict(b), "not_found: local4.yaml:8:5: unknown actor kind 'omelette'; known are egg");
}

TEST_F(supervisor_tree, nests) {
  // /top supervises /s, which supervises /s/a: what /s cannot mend is mended by its own restart.
  struct nested final : di::actors::child_launcher {
    explicit nested(supervisor_tree& t) : tree{&t} {}
    di::result<void> start(const child_spec& c, std::uint64_t, ended_fn ended) override {
      di::actors::supervisor_options options;
      options.self = c.path;
      options.children = {spec("/s/a", restart_strategy::one_for_one, 0)};
      options.launcher = &*tree->launcher;
      options.office = &tree->world.office;
      di::actors::spawn_options spawn;
      spawn.ended = std::move(ended);
      return tree->world.system.spawn_as<di::actors::supervisor>(c.path, spawn, std::move(options));
    }
    void stop(const child_spec& c, std::uint64_t, const di::error& reason) override {
      tree->world.system.stop(c.path, reason);
    }
    supervisor_tree* tree;
  } upper{*this};
  di::actors::supervisor_options options;
  options.self = "/top";
  options.children = {spec("/s", restart_strategy::one_for_one, 1)};
  options.launcher = &upper;
  options.office = &world.office;
  di::actors::spawn_options spawn;
  spawn.ended = [this](const di::error& e) { ended = e; };
  world.system.spawn_as<di::actors::supervisor>("/top", spawn, std::move(options)).value();
  world.run();
  kill("/s/a"); // /s gives up at once, /top starts it again
  EXPECT_FALSE(ended.has_value());
  EXPECT_EQ(life("/s/a"), 1U); // first life under a new supervisor
  kill("/s/a");
  ASSERT_TRUE(ended.has_value());
  EXPECT_NE(ended->what.find("/s: no restart left of 1"), std::string::npos) << ended->what;
  EXPECT_NE(ended->what.find("/s/a: no restart left of 0"), std::string::npos) << ended->what;
  EXPECT_TRUE(world.system.paths().empty());
}

} // namespace
