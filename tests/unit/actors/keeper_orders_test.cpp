// SPDX-License-Identifier: Apache-2.0
// Goal: what KEEPER does about orders of the operator: scale, drain, join, upgrade, kill. Method:
// the small world of tests/support/keeper_world.hpp.
#include "tests/support/keeper_world.hpp"

namespace {

using namespace std::chrono_literals;
using di::engine::kept_state;
using di::test::keeper_world;
using di::test::keeper_world_options;
namespace proto = di::proto;
using ranks = std::set<std::uint32_t>;

TEST(keeper, scales_down_and_up) {
  keeper_world w{{}};
  w.ask(proto::scale_group{2});
  w.run_for(3s);
  EXPECT_EQ(w.members(), (ranks{0, 1}));
  ASSERT_EQ(w.answers.size(), 1U);
  EXPECT_EQ(w.answers[0].value().ranks, 2U);
  EXPECT_FALSE(w.processes[3].alive);
  w.run_for(1min);
  EXPECT_EQ(w.members(), (ranks{0, 1})) << "nobody comes back by itself";
  w.ask(proto::scale_group{4});
  w.run_for(3s);
  EXPECT_EQ(w.members(), (ranks{0, 1, 2, 3}));
  EXPECT_EQ(w.answers.size(), 2U);
  EXPECT_EQ(w.state(3), kept_state::member);
}

TEST(keeper, refuses_orders_that_cannot_be) {
  keeper_world_options o;
  o.members_min = 4;
  keeper_world w{o};
  w.ask(proto::scale_group{9});
  w.ask(proto::scale_group{3});
  w.ask(proto::drain_member{di::rank_id{7}});
  w.ask(proto::drain_member{di::rank_id{1}});
  w.ask(proto::join_member{di::rank_id{1}});
  w.ask(proto::upgrade_group{});
  w.run_for(10ms);
  ASSERT_EQ(w.answers.size(), 6U);
  EXPECT_EQ(w.answers[0].error().render(), "bad_argument: 9 ranks: the topology allows 4 to 4");
  EXPECT_EQ(w.answers[1].error().code, di::ec::bad_argument);
  EXPECT_EQ(w.answers[2].error().render(), "not_found: no rank 7 in the topology; there are 4");
  EXPECT_EQ(w.answers[3].error().render(),
            "bad_argument: 4 ranks are in the group, at least 4 must stay (supervisor.min_ep)");
  EXPECT_EQ(w.answers[4].error().render(), "bad_argument: rank 1 is in the group (view 1)");
  EXPECT_EQ(w.answers[5].error().code, di::ec::bad_argument);
  EXPECT_EQ(w.views.size(), 1U);
}

TEST(keeper, lets_no_rank_go_that_the_group_waits_for) {
  keeper_world_options o;
  o.ranks = 3;
  o.members_min = 2;
  keeper_world w{o};
  w.kill(1);
  w.kill(2);
  w.run_for(100ms);
  ASSERT_EQ(w.state(2), kept_state::waiting);
  w.ask(proto::drain_member{di::rank_id{1}}); // rank 0 and 2 will be enough
  w.run_for(1ms);
  w.ask(proto::drain_member{di::rank_id{2}});
  w.run_for(1ms);
  ASSERT_EQ(w.answers.size(), 2U);
  EXPECT_TRUE(w.answers[0].ok());
  ASSERT_FALSE(w.answers[1].ok());
  EXPECT_EQ(w.answers[1].error().what, "1 other ranks are in the group or come back, at least 2 "
                                       "must stay (supervisor.min_ep)");
  w.run_for(10s);
  EXPECT_FALSE(w.failed.has_value());
  EXPECT_EQ(w.members(), (ranks{0, 2}));
}

TEST(keeper, drains_a_busy_rank_until_its_deadline) {
  keeper_world_options o;
  o.more = [](di::engine::keeper_options& k) { k.drain_timeout = 2s; };
  keeper_world w{o};
  w.processes[1].busy = true;
  w.ask(proto::drain_member{di::rank_id{1}});
  w.ask(proto::scale_group{2});
  w.run_for(1s);
  ASSERT_EQ(w.answers.size(), 1U);
  EXPECT_EQ(w.answers[0].error().render(), "unavailable: another order is under way: drain rank 1");
  EXPECT_EQ(w.members().size(), 4U);
  EXPECT_EQ(w.state(1), kept_state::draining);
  EXPECT_GE(w.drains_told["/rank/1/rank"], 5U) << "a rank forgets it with each view";
  w.run_for(2s);
  EXPECT_EQ(w.members(), (ranks{0, 2, 3}));
  EXPECT_EQ(w.state(1), kept_state::absent);
  ASSERT_EQ(w.answers.size(), 2U);
  EXPECT_TRUE(w.answers[1].ok());
  w.ask(proto::join_member{di::rank_id{1}});
  w.run_for(1s);
  EXPECT_EQ(w.members().size(), 4U);
}

TEST(keeper, upgrades_one_rank_after_the_other) {
  keeper_world w{{}};
  std::set<std::uint64_t> before;
  for (const auto& [r, p] : w.processes)
    before.insert(p.life.v);
  w.ask(proto::upgrade_group{});
  w.run_for(10s);
  ASSERT_EQ(w.answers.size(), 1U);
  EXPECT_TRUE(w.answers[0].ok());
  EXPECT_EQ(w.members().size(), 4U);
  EXPECT_EQ(w.views.size(), 9U) << "out and in, four times";
  for (const auto& v : w.views)
    EXPECT_GE(v.members.size(), 3U);
  for (const auto& m : w.views.back().members)
    EXPECT_FALSE(before.contains(m.life.v));
  for (std::uint32_t r = 0; r < 4; ++r)
    EXPECT_EQ(w.keeper->core()
                  .on(proto::get_keeper{}, w.now, *std::make_unique<di::outbox>())
                  .value()
                  .ranks[r]
                  .deaths,
              0U);
}

TEST(keeper, stops_an_upgrade_whose_new_build_does_not_come_up) {
  keeper_world w{{}};
  w.broken = {0, 1, 2, 3};
  w.ask(proto::upgrade_group{});
  w.run_for(1min);
  ASSERT_EQ(w.answers.size(), 1U);
  EXPECT_EQ(w.answers[0].error().render(), "unavailable: upgrade: rank 0 did not come back: killed "
                                           "by signal 9");
  EXPECT_EQ(w.members(), (ranks{1, 2, 3})) << "the others stay as they are";
}

TEST(keeper, kills_a_rank_on_the_operators_word) {
  keeper_world w{{}};
  w.ask(proto::kill_member{di::rank_id{2}});
  w.run_for(10ms);
  ASSERT_EQ(w.answers.size(), 1U);
  EXPECT_TRUE(w.answers[0].ok());
  EXPECT_EQ(w.members(), (ranks{0, 1, 3}));
  w.run_for(3s);
  EXPECT_EQ(w.members().size(), 4U);
}

} // namespace
