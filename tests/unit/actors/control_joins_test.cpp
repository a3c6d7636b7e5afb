// SPDX-License-Identifier: Apache-2.0
// Joins after the group has formed, control processes that start again, and proxies of node
// processes, on fake time.
#include "actors/node_proxy.hpp"
#include "tests/unit/actors/control_plane.hpp"

namespace {

using namespace std::chrono_literals;
using di::incarnation;
using di::test::rank_process;
using control_plane = di::test::control_plane;
namespace proto = di::proto;

TEST_F(control_plane, tells_that_a_late_process_is_ready_when_all_know_it) {
  start({"/rank/0", "/rank/1"});
  join(rank_process(0, 10));
  join(rank_process(1, 11));
  EXPECT_TRUE(ready.empty()) << "the first group is no late process";
  world.tell("/control/directory", proto::withdrawn{"/rank/1", incarnation{11}, "killed"}).value();
  world.run();
  leave(rank_process(1, 11));
  leave(rank_process(0, 10)); // it does not answer for a while
  join(rank_process(1, 12));
  EXPECT_TRUE(ready.empty()) << "rank 0 has no route to it yet";
  join(rank_process(0, 10));
  for (int i = 0; i < 40 && ready.empty(); ++i)
    world.advance(100ms);
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0].life.v, 12U);
  EXPECT_EQ(views.size(), 1U) << "KEEPER decides what becomes of it";
}

TEST_F(control_plane, waits_for_no_answer_of_a_life_that_is_withdrawn) {
  start({"/rank/0", "/rank/1"});
  join(rank_process(0, 10));
  join(rank_process(1, 11));
  leave(rank_process(0, 10));
  leave(rank_process(1, 11));
  join(rank_process(1, 12));
  EXPECT_TRUE(ready.empty());
  world.tell("/control/directory", proto::withdrawn{"/rank/0", incarnation{10}, "killed"}).value();
  for (int i = 0; i < 40 && ready.empty(); ++i)
    world.advance(100ms);
  EXPECT_EQ(ready.size(), 1U);
}

TEST_F(control_plane, refuses_a_rank_that_computes_something_else) {
  start({"/rank/0"});
  auto first = rank_process(0, 10);
  first.proof = "tokens 1 2 3";
  join(first);
  world.tell("/control/directory", proto::withdrawn{"/rank/0", incarnation{10}, "killed"}).value();
  world.run();
  leave(first); // nobody is left to compare with, but what the group computed is known
  auto other = rank_process(0, 11);
  other.proof = "tokens 1 2 4";
  join(other);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->render(),
            "refused: /rank/0 computes something else than the group: the proof of its known "
            "tokens is 'tokens 1 2 4', that of /rank/0 'tokens 1 2 3'");
}

TEST_F(control_plane, forms_again_around_a_control_process_that_was_started_again) {
  start({"/rank/0", "/rank/1"});
  join(rank_process(0, 10));
  join(rank_process(1, 11));
  for (const char* r : {"/rank/0/registrar", "/rank/1/registrar"})
    world.tell(r, proto::view_committed{di::epoch{7}, {}}).value();
  world.run();
  world.system.stop("/control/directory");
  world.system.stop("/control/membership");
  world.run();
  ended.reset();
  recovering = true;
  start({"/rank/0", "/rank/1", "/rank/2"});
  // Rank 2 ran when control died, and dies before it can announce itself.
  world.tell("/control/membership", proto::member_lost{di::rank_id{2}, incarnation{12}, "killed"})
      .value();
  world.system.stop("/control/membership"); // (it has no DIRECTORY to tell in this test)
  world.tell("/control/directory", proto::withdrawn{"/rank/2", incarnation{12}, "killed"}).value();
  di::engine::membership_options m;
  m.listeners = {"/control/scheduler"};
  world.run();
  world.system.spawn_as<di::actors::membership>("/control/membership", {}, m).value();
  proto::process_entry control;
  control.prefix = "/control";
  control.life = incarnation{99};
  control.control_endpoint = "ipc:///run/c-99.c.sock";
  for (const char* r : {"/rank/0/registrar", "/rank/1/registrar"})
    for (int twice = 0; twice < 2; ++twice)
      world.tell(r, proto::control_moved{control}).value();
  for (int i = 0; i < 20 && views.size() < 2; ++i)
    world.advance(100ms);
  ASSERT_EQ(views.size(), 2U);
  EXPECT_EQ(views[1].view.v, 8U) << "past all that any process has seen";
  EXPECT_EQ(views[1].members.size(), 2U);
  EXPECT_FALSE(ended.has_value());
}

TEST_F(control_plane, a_registrar_refuses_what_the_control_process_before_had_sent) {
  di::actors::registrar_options r;
  r.process = rank_process(0, 10);
  r.office = &world.office;
  di::actors::registrar_core registrar{r};
  di::outbox out;
  proto::process_entry control;
  control.prefix = "/control";
  control.life = incarnation{98};
  control.control_endpoint = "ipc:///run/c-98.c.sock";
  const proto::directory_snapshot before{di::epoch{8}, {control, r.process}};
  ASSERT_TRUE(registrar.on(before).ok());
  control.life = incarnation{99};
  control.control_endpoint = "ipc:///run/c-99.c.sock";
  ASSERT_TRUE(registrar.on(proto::control_moved{control}, di::instant{}, out).ok());
  // It was on its way when that process died.
  const auto late = registrar.on(before);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, di::ec::stale_incarnation);
  EXPECT_TRUE(registrar.on(proto::directory_snapshot{di::epoch{1}, {control, r.process}}).ok());
}

TEST(node_proxy, answers_when_the_node_process_has) {
  struct recorder : di::actors::node_orders {
    void start_rank(di::node_id, di::rank_id r, std::uint64_t) override { started.push_back(r.v); }
    void kill_rank(di::node_id, const proto::kill_rank& k) override { killed.push_back(k.life.v); }
    std::vector<std::uint64_t> started, killed;
  } orders;
  di::actors::node_proxy_core proxy{di::node_id{1}, orders};
  const di::reply_to first{"/control/keeper", 1}, second{"/control/keeper", 2};
  di::outbox out;
  proxy.on(proto::start_rank{di::rank_id{3}}, first, {}, out);
  EXPECT_TRUE(out.empty());
  proxy.on(proto::start_rank{di::rank_id{3}}, second, {}, out);
  ASSERT_EQ(out.effects().size(), 1U) << "the first question is over";
  EXPECT_NE(std::get_if<di::effect::refuse>(&out.effects()[0]), nullptr);
  (void)out.take();
  proxy.on(proto::start_failed{di::rank_id{3}, di::ec::io_error, "no memory"}, {}, out);
  const auto effects = out.take();
  const auto* refused = std::get_if<di::effect::refuse>(&effects.at(0));
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->err.render(), "io_error: no memory");
  proxy.on(proto::rank_started{di::rank_id{3}, incarnation{5}}, {}, out);
  EXPECT_NE(std::get_if<di::effect::count>(&out.effects().at(0)), nullptr) << "nobody asked";
  proxy.on(proto::kill_rank{di::rank_id{3}, incarnation{5}, false, "fenced"}, {}, out);
  EXPECT_EQ(orders.started.size(), 2U);
  EXPECT_EQ(orders.killed, std::vector<std::uint64_t>{5});
}

} // namespace
