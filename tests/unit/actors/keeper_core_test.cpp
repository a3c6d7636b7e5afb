// SPDX-License-Identifier: Apache-2.0
// Goal: what KEEPER and MEMBERSHIP do about losses and restarts, case by case; orders:
// keeper_orders_test.cpp. Method: a small world
// with fixed delays (tests/support/keeper_world.hpp).
#include "tests/support/keeper_world.hpp"

namespace {

using namespace std::chrono_literals;
using di::engine::kept_state;
using di::engine::on_loss;
using di::test::keeper_world;
using di::test::keeper_world_options;
namespace proto = di::proto;

keeper_world_options with_loss(on_loss loss, std::uint32_t ranks = 4) {
  keeper_world_options o;
  o.ranks = ranks;
  o.loss = loss;
  return o;
}

using ranks = std::set<std::uint32_t>;

TEST(keeper, shrinks_then_grows_back_after_its_hold_off) {
  keeper_world w{{}};
  ASSERT_EQ(w.views.size(), 1U);
  w.kill(1);
  w.run_for(10ms);
  ASSERT_EQ(w.views.size(), 2U);
  EXPECT_EQ(w.members(), (ranks{0, 2, 3}));
  EXPECT_EQ(w.state(1), kept_state::waiting);
  w.run_for(900ms);
  EXPECT_TRUE(w.starts[1].empty()) << "1 s of hold-off, and up to a quarter more";
  w.run_for(600ms);
  EXPECT_EQ(w.members(), (ranks{0, 1, 2, 3}));
  EXPECT_EQ(w.views.size(), 3U);
  EXPECT_EQ(w.state(1), kept_state::member);
  ASSERT_EQ(w.withdrawn_told.size(), 1U);
  EXPECT_EQ(w.withdrawn_told[0].first, "/control/directory");
}

TEST(keeper, takes_deaths_at_the_same_time_as_one_change) {
  keeper_world w{{}};
  w.kill(1);
  w.run_for(1ms);
  w.kill(3);
  w.run_for(10ms);
  EXPECT_EQ(w.views.size(), 2U);
  EXPECT_EQ(w.members(), (ranks{0, 2}));
}

TEST(keeper, fences_a_stuck_member_and_starts_it_only_when_it_is_reaped) {
  keeper_world w{{}};
  const auto life = w.processes[2].life;
  w.stuck(2);
  w.run_for(10ms);
  EXPECT_EQ(w.members(), (ranks{0, 1, 3}));
  EXPECT_FALSE(w.processes[2].alive) << "killed by its node";
  w.run_for(3s);
  EXPECT_EQ(w.members(), (ranks{0, 1, 2, 3}));
  EXPECT_NE(w.processes[2].life, life);
  EXPECT_TRUE(w.reaped.contains(life.v));
}

TEST(keeper, goes_on_when_the_journal_does_not_answer) {
  keeper_world w{{}};
  w.journal_answers = false;
  w.kill(0);
  w.run_for(300ms);
  EXPECT_EQ(w.views.size(), 1U) << "it waits for the journal";
  w.run_for(300ms);
  EXPECT_EQ(w.members(), (ranks{1, 2, 3}));
}

TEST(keeper, quarantines_a_rank_that_dies_too_often_and_lets_it_come_back_later) {
  keeper_world w{{}};
  for (int death = 0; death < 4; ++death) {
    w.kill(1);
    w.run_for(30s);
  }
  EXPECT_EQ(w.state(1), kept_state::quarantined);
  EXPECT_EQ(w.starts[1].size(), 3U);
  w.run_for(8min);
  EXPECT_EQ(w.starts[1].size(), 3U);
  w.run_for(2min);
  EXPECT_EQ(w.state(1), kept_state::member);
}

TEST(keeper, waits_longer_after_each_death_in_a_row) {
  keeper_world w{{}};
  const auto died = w.now;
  w.kill(1);
  w.run_for(5s);
  const auto again = w.now;
  w.kill(1);
  w.run_for(5s);
  ASSERT_EQ(w.starts[1].size(), 2U);
  EXPECT_GE(w.starts[1][0] - died, 1s);
  EXPECT_LE(w.starts[1][0] - died, 1300ms);
  EXPECT_GE(w.starts[1][1] - again, 2s);
  EXPECT_LE(w.starts[1][1] - again, 2600ms);
}

TEST(keeper, leaves_the_view_as_it_is_when_a_joiner_fails) {
  keeper_world w{{}};
  w.broken = {1};
  w.kill(1);
  w.run_for(1min);
  EXPECT_EQ(w.views.size(), 2U) << "one view for the loss, none for the failed joins";
  EXPECT_EQ(w.state(1), kept_state::quarantined);
}

TEST(keeper, ends_a_joiner_that_is_too_slow) {
  keeper_world_options o;
  o.more = [](di::engine::keeper_options& k) { k.join_timeout = 5s; };
  keeper_world w{o};
  w.slow = {2};
  w.kill(2);
  w.run_for(4s);
  EXPECT_EQ(w.state(2), kept_state::proving);
  const auto life = w.processes[2].life;
  w.run_for(3s);
  EXPECT_TRUE(w.reaped.contains(life.v));
  w.slow = {};
  w.run_for(10s);
  EXPECT_EQ(w.state(2), kept_state::member);
  EXPECT_EQ(w.views.size(), 3U);
}

TEST(keeper, lets_one_rank_join_at_a_time) {
  keeper_world_options o;
  o.ranks = 8;
  o.load_time = 2s;
  keeper_world w{o};
  for (const auto r : {1U, 2U, 3U})
    w.kill(r);
  w.run_for(2500ms);
  EXPECT_EQ(w.starts[1].size() + w.starts[2].size() + w.starts[3].size(), 1U);
  w.run_for(10s);
  EXPECT_EQ(w.members().size(), 8U);
  EXPECT_EQ(w.views.size(), 5U) << "one loss of three, three joins";
}

TEST(keeper, keeps_lost_ranks_away_under_manual_until_told) {
  keeper_world_options o;
  o.more = [](di::engine::keeper_options& k) { k.rejoin = false; };
  keeper_world w{o};
  w.kill(1);
  w.run_for(1min);
  EXPECT_EQ(w.state(1), kept_state::absent);
  w.ask(proto::join_member{di::rank_id{1}});
  w.run_for(1s);
  EXPECT_EQ(w.members().size(), 4U);
  ASSERT_EQ(w.answers.size(), 1U);
  EXPECT_EQ(w.answers[0].value().ranks, 4U);
}

TEST(keeper, gives_up_when_too_few_are_left_and_none_comes_back) {
  keeper_world_options o;
  o.ranks = 2;
  o.more = [](di::engine::keeper_options& k) {
    k.restarts_max = 1;
    k.quarantine = 1h;
  };
  o.members_min = 2;
  keeper_world w{o};
  w.broken = {1};
  w.kill(1);
  w.run_for(500ms);
  EXPECT_FALSE(w.failed.has_value()) << "it may come back";
  EXPECT_EQ(w.views.size(), 1U) << "one rank is too few for a view";
  w.run_for(5s);
  ASSERT_TRUE(w.failed.has_value());
  EXPECT_EQ(w.failed->render(),
            "gave_up: 1 ranks are left, at least 2 are needed (supervisor.min_ep), and not "
            "enough come back: restarts are used up; last loss: rank 1: killed by signal 9");
}

TEST(keeper, waits_below_the_minimum_until_enough_are_back) {
  keeper_world_options o;
  o.members_min = 3;
  keeper_world w{o};
  for (const auto r : {0U, 1U, 2U})
    w.kill(r);
  w.run_for(500ms);
  EXPECT_EQ(w.views.size(), 1U);
  w.run_for(5s);
  EXPECT_EQ(w.members().size(), 4U);
  EXPECT_GE(w.views[1].members.size(), 3U);
  EXPECT_FALSE(w.failed.has_value());
}

TEST(keeper, starts_the_same_rank_first_under_restart) {
  keeper_world w{with_loss(on_loss::restart)};
  const auto life = w.processes[1].life;
  w.kill(1);
  w.run_for(20ms);
  EXPECT_EQ(w.views.size(), 1U) << "the group waits";
  EXPECT_EQ(w.withdrawn_told.size(), 1U) << "but calls to the dead come back";
  w.run_for(200ms);
  ASSERT_EQ(w.views.size(), 2U);
  EXPECT_EQ(w.members().size(), 4U);
  EXPECT_TRUE(w.left.contains(life.v));
}

TEST(keeper, shrinks_under_restart_when_the_budget_is_used_up) {
  auto o = with_loss(on_loss::restart);
  o.more = [](di::engine::keeper_options& k) { k.restarts_max = 2; };
  keeper_world w{o};
  w.broken = {1};
  w.kill(1);
  w.run_for(30s);
  EXPECT_EQ(w.members(), (ranks{0, 2, 3}));
  EXPECT_EQ(w.views.size(), 2U);
  EXPECT_EQ(w.state(1), kept_state::quarantined);
}

TEST(keeper, replaces_the_whole_group_by_a_smaller_one) {
  keeper_world w{with_loss(on_loss::restart_smaller)};
  std::set<di::incarnation> before;
  for (const auto& [r, p] : w.processes)
    before.insert(p.life);
  w.kill(3);
  w.run_for(20ms);
  EXPECT_EQ(w.views.size(), 1U);
  w.run_for(3s);
  ASSERT_EQ(w.views.size(), 2U) << "one view for the whole change";
  EXPECT_EQ(w.members(), (ranks{0, 1, 2}));
  for (const auto& m : w.views.back().members)
    EXPECT_FALSE(before.contains(m.life));
  w.run_for(1min);
  EXPECT_EQ(w.views.size(), 2U);
  w.kill(0);
  w.run_for(5s);
  EXPECT_EQ(w.members(), (ranks{0, 1}));
}

// --- a control process that was started again ---------------------------------------------------

TEST(keeper, goes_on_after_control_was_started_again) {
  keeper_world w{{}};
  w.kill(1);
  w.run_for(10ms);
  ASSERT_EQ(w.views.back().view.v, 2U);
  w.kill(3); // nobody is there to hear of it
  w.restart_control();
  w.run_for(20ms);
  EXPECT_EQ(w.views.back().view.v, 3U);
  EXPECT_EQ(w.members(), (ranks{0, 2}));
  w.run_for(5s);
  EXPECT_EQ(w.members().size(), 4U);
}

TEST(keeper, ends_processes_that_were_not_in_the_last_view) {
  keeper_world w{{}};
  w.kill(1);
  for (int i = 0; i < 400 && !w.processes[1].alive; ++i)
    w.run_for(5ms); // its replacement loads
  const auto joiner = w.processes[1].life;
  ASSERT_TRUE(w.processes[1].alive);
  ASSERT_EQ(w.members().size(), 3U);
  w.restart_control();
  w.run_for(50ms);
  EXPECT_EQ(w.members(), (ranks{0, 2, 3}));
  EXPECT_TRUE(w.reaped.contains(joiner.v));
  w.run_for(5s);
  EXPECT_EQ(w.members().size(), 4U);
}

TEST(keeper, ends_a_process_that_hung_while_control_started_again) {
  for (const bool rejoin : {true, false}) {
    keeper_world_options o;
    o.more = [&](di::engine::keeper_options& k) { k.rejoin = rejoin; };
    keeper_world w{o};
    const auto hung = w.processes[2].life;
    w.silent = {2};
    w.restart_control();
    w.run_for(50ms);
    EXPECT_EQ(w.members(), (ranks{0, 1, 3}));
    EXPECT_TRUE(w.reaped.contains(hung.v));
    w.run_for(10s);
    EXPECT_EQ(w.members().size(), rejoin ? 4U : 3U);
    EXPECT_EQ(w.starts[2].size(), rejoin ? 1U : 0U);
  }
}

TEST(keeper, does_not_admit_a_life_that_hung_while_control_started_again) {
  keeper_world w{{}};
  const auto hung = w.processes[2].life;
  w.silent = {2};
  w.restart_control();
  for (int i = 0; i < 10'000 && w.state(2) != kept_state::starting; ++i)
    w.run_for(1us);
  w.run_for(5us); // the word of its loss
  w.comes_back_late(2);
  ASSERT_EQ(w.state(2), kept_state::starting) << "its node has not answered yet";
  w.run_for(10us);
  EXPECT_NE(w.state(2), kept_state::admitting);
  w.run_for(1min);
  EXPECT_EQ(w.members().size(), 4U);
  EXPECT_NE(w.processes[2].life, hung);
}

TEST(membership, numbers_views_past_what_a_process_has_seen) {
  di::engine::membership_core core{{}};
  di::outbox out;
  proto::group_formed g;
  g.view = di::epoch{41};
  proto::process_entry p;
  p.prefix = "/rank/0";
  p.role = "rank";
  p.life = di::incarnation{5};
  g.processes = {p};
  core.on(g, {}, out);
  EXPECT_EQ(core.view()->view.v, 42U);
}

} // namespace
