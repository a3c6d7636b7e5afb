// SPDX-License-Identifier: Apache-2.0
// DIRECTORY, registrars, MEMBERSHIP, TELEMETRY and TOPIC together, on fake time.
#include "actors/telemetry.hpp"
#include "actors/topic.hpp"
#include "tests/unit/actors/control_plane.hpp"

#include <gtest/gtest.h>

namespace {

using namespace std::chrono_literals;
using di::incarnation;
using di::test::answer_as;
using di::test::refusal;
namespace proto = di::proto;

using di::test::rank_process;
using control_plane = di::test::control_plane;

TEST_F(control_plane, forms_the_group_when_all_are_there) {
  start({"/rank/0", "/rank/1"});
  join(rank_process(1, 11));
  EXPECT_TRUE(snapshots.empty()) << "nothing goes out before all are there";
  EXPECT_EQ(refusal(world.ask("/control/membership", proto::get_view{})).code, di::ec::unavailable);
  join(rank_process(0, 10));
  ASSERT_EQ(snapshots.size(), 2U);
  EXPECT_EQ(snapshots[0].processes.size(), 2U);
  EXPECT_EQ(world.office.routes().size(), 2U);
  ASSERT_EQ(views.size(), 1U);
  EXPECT_EQ(views[0].view.v, 1U);
  ASSERT_EQ(views[0].members.size(), 2U);
  EXPECT_EQ(views[0].members[0].life.v, 10U);
  EXPECT_EQ(views[0].members[1].life.v, 11U);
}

TEST_F(control_plane, retries_a_registrar_that_is_late) {
  start({"/rank/0"});
  // Announced by hand, before its registrar exists: the snapshot finds nobody at first.
  const auto mail = world.ask("/control/directory", proto::announce{rank_process(0, 10)});
  ASSERT_NE(answer_as<proto::announced>(mail), nullptr);
  EXPECT_EQ(answer_as<proto::announced>(mail)->present, 1U);
  world.advance(1ms);
  EXPECT_TRUE(views.empty());
  join(rank_process(0, 10));
  for (int i = 0; i < 20 && views.empty(); ++i)
    world.advance(20ms);
  EXPECT_EQ(views.size(), 1U);
}

TEST_F(control_plane, names_the_missing_at_its_deadline) {
  start({"/rank/0", "/rank/1", "/rank/2"}, 3s);
  join(rank_process(1, 11));
  world.advance(3s);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->render(), "deadline_exceeded: after 3000 ms 1 of 3 processes are there; "
                             "missing: /rank/0, /rank/2");
}

TEST_F(control_plane, refuses_another_contract) {
  start({"/rank/0", "/rank/1"});
  join(rank_process(0, 10));
  auto other = rank_process(1, 11);
  other.contract_id = "cuda-1-abc";
  join(other);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->render(), "refused: contract 'cuda-1-abc' of /rank/1 differs from 'cpu-1-abc' "
                             "of /rank/0");
}

TEST_F(control_plane, replaces_a_life_and_never_takes_it_back) {
  start({"/rank/0", "/rank/1"});
  join(rank_process(0, 10));
  join(rank_process(1, 11));
  leave(rank_process(1, 11));
  join(rank_process(1, 12));
  const auto mail = world.ask("/control/directory", proto::resolve{"/rank/1/expert_shard"});
  ASSERT_NE(answer_as<proto::resolved>(mail), nullptr);
  EXPECT_EQ(answer_as<proto::resolved>(mail)->process.life.v, 12U);
  EXPECT_EQ(snapshots.back().processes[1].life.v, 12U);
  EXPECT_EQ(refusal(world.ask("/control/directory", proto::announce{rank_process(1, 11)})).render(),
            "stale_incarnation: life 000000000000000b of /rank/1 is over");
  EXPECT_EQ(views.size(), 1U) << "a new life is no member until a view says so";
}

TEST_F(control_plane, passes_on_that_a_life_is_withdrawn) {
  start({"/rank/0", "/rank/1"});
  join(rank_process(0, 10));
  join(rank_process(1, 11));
  world.tell("/control/directory", proto::withdrawn{"/rank/1", incarnation{99}, "?"}).value();
  world.run();
  EXPECT_EQ(counted("di_directory_stale_facts_total"), 1);
  EXPECT_EQ(world.office.routes().size(), 2U);
  world.tell("/control/directory", proto::withdrawn{"/rank/1", incarnation{11}, "killed"}).value();
  world.run();
  EXPECT_EQ(refusal(world.ask("/control/directory", proto::resolve{"/rank/1"})).code,
            di::ec::not_found);
  EXPECT_EQ(world.office.routes().size(), 1U);
}

TEST_F(control_plane, resolves_by_the_longest_prefix_at_a_slash) {
  start({"/rank/1"});
  join(rank_process(1, 11));
  EXPECT_EQ(refusal(world.ask("/control/directory", proto::resolve{"/rank/11/rank"})).code,
            di::ec::not_found);
  EXPECT_NE(answer_as<proto::resolved>(world.ask("/control/directory", proto::resolve{"/rank/1"})),
            nullptr);
}

TEST_F(control_plane, routes_the_further_prefixes_of_a_process) {
  start({"/control"});
  auto process = rank_process(7, 70);
  process.prefix = "/control";
  process.role = "control";
  process.aliases = {"/gateway/0", "/cluster"};
  join(process);
  EXPECT_EQ(world.office.routes().size(), 3U);
  const auto mail = world.ask("/control/directory", proto::resolve{"/cluster/meter"});
  ASSERT_NE(answer_as<proto::resolved>(mail), nullptr);
  EXPECT_EQ(answer_as<proto::resolved>(mail)->process.prefix, "/control");
}

TEST_F(control_plane, gives_up_joining_when_nobody_answers) {
  join(rank_process(0, 10)); // no DIRECTORY at all
  for (int i = 0; i < 60 && !ended; ++i)
    world.advance(100ms);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->code, di::ec::deadline_exceeded);
  EXPECT_NE(ended->what.find("no actor at /control/directory"), std::string::npos) << ended->what;
}

TEST_F(control_plane, commits_a_smaller_view_only_for_the_life_that_is_in) {
  start({"/rank/0", "/rank/1"});
  join(rank_process(0, 10));
  join(rank_process(1, 11));
  const auto lost = [&](std::uint64_t life) {
    world
        .tell("/control/membership",
              proto::member_lost{di::rank_id{1}, incarnation{life}, "killed"})
        .value();
    world.run();
    world.advance(2ms); // evidence is gathered
  };
  lost(99);
  EXPECT_EQ(views.size(), 1U);
  EXPECT_EQ(counted("di_membership_stale_facts_total"), 1);
  lost(11);
  ASSERT_EQ(views.size(), 2U);
  EXPECT_EQ(views[1].view.v, 2U);
  ASSERT_EQ(views[1].members.size(), 1U);
  lost(11); // told twice: no third view
  EXPECT_EQ(views.size(), 2U);
  const auto confirm = [&](std::uint32_t rank, std::uint64_t life) {
    return world.ask("/control/membership",
                     proto::check_member{di::rank_id{rank}, incarnation{life}});
  };
  EXPECT_NE(answer_as<proto::member_confirmed>(confirm(0, 10)), nullptr);
  EXPECT_EQ(refusal(confirm(1, 11)).render(),
            "stale_incarnation: rank 1 (life 000000000000000b) is not in view 2");
}

TEST(membership_core, ends_the_run_when_it_may_not_shrink) {
  di::engine::membership_core core{{}};
  di::outbox out;
  core.on(proto::group_formed{di::epoch{1}, {rank_process(0, 10)}}, {}, out);
  EXPECT_EQ(core.on(proto::get_view{}).value().view.v, 1U);
  (void)out.take();
  core.on(proto::member_lost{di::rank_id{0}, incarnation{10}, "killed by signal 9"}, {}, out);
  const auto effects = out.take();
  const auto* failed = std::get_if<di::effect::fail>(&effects.back());
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->err.render(),
            "peer_lost: rank 0 (life 000000000000000a) is lost: killed by signal 9");
}

TEST(telemetry_core, sums_over_processes_and_lives) {
  di::engine::telemetry_core core;
  di::outbox out;
  const auto send = [&](const char* from, std::uint64_t life, std::uint64_t sequence, double n) {
    core.on(proto::sample{from, incarnation{life}, sequence, {{"di_rank_steps_total", n}}}, {},
            out);
    core.check();
  };
  const auto sum = [&] {
    return core.on(proto::get_snapshot{}).value().counters["di_rank_steps_total"];
  };
  send("/rank/0", 1, 1, 5);
  send("/rank/0", 1, 2, 7);
  send("/rank/1", 9, 1, 10);
  EXPECT_EQ(sum(), 17);
  send("/rank/0", 1, 2, 99); // repeated
  send("/rank/0", 1, 1, 5);  // late
  EXPECT_EQ(sum(), 17);
  send("/rank/0", 2, 1, 1); // restarted: sums never fall
  EXPECT_EQ(sum(), 18);
  send("/rank/0", 1, 3, 50); // a late word of the dead
  EXPECT_EQ(sum(), 18);
  EXPECT_EQ(core.on(proto::get_snapshot{}).value().dropped, 3U);
  EXPECT_EQ(core.on(proto::get_snapshot{}).value().sources.size(), 2U);
}

TEST_F(control_plane, samples_the_counters_of_a_process) {
  world.system.spawn_as<di::actors::telemetry>("/control/telemetry", {}).value();
  world.system.counters().add("di_test_things_total", 3);
  di::actors::sampler_options s;
  s.source = "/rank/0";
  s.counters = &world.system.counters();
  world.system.spawn_as<di::actors::sampler>("/rank/0/sampler", {}, s).value();
  world.run();
  world.system.counters().add("di_test_things_total", 4);
  const auto total = [&] {
    const auto mail = world.ask("/control/telemetry", proto::get_snapshot{});
    return answer_as<proto::snapshot>(mail)->counters.at("di_test_things_total");
  };
  EXPECT_EQ(total(), 3);
  world.advance(1s);
  EXPECT_EQ(total(), 7);
}

TEST(sampler, rests_while_nothing_is_counted) {
  di::actors::metrics counters;
  di::actors::sampler_options s;
  s.source = "/rank/0";
  s.counters = &counters;
  di::actors::sampler_core core{s};
  const auto wait_after = [&] {
    di::outbox out;
    counters.add("di_shell_mails_total"); // the mail of the report itself
    core.on_due({1, 0}, {}, out);
    EXPECT_EQ(out.effects().size(), 2U); // the sample, and the timer
    return std::get<di::effect::arm>(out.effects().at(1)).after;
  };
  EXPECT_EQ(wait_after(), 1s);
  EXPECT_EQ(wait_after(), 2s);
  EXPECT_EQ(wait_after(), 4s);
  for (int n = 0; n < 5; ++n)
    EXPECT_LE(wait_after(), s.period_max);
  EXPECT_EQ(wait_after(), s.period_max);
  counters.add("di_test_things_total");
  EXPECT_EQ(wait_after(), 1s);
}

TEST_F(control_plane, fans_facts_out_by_name) {
  world.system.spawn_as<di::actors::topic>(di::topic_address, {}).value();
  std::vector<const void*> heard;
  for (const char* listener : {"/a", "/b"})
    world.office.bind(listener, [&](const di::envelope& m) { heard.push_back(m.body.body()); })
        .value();
  const auto subscribe = [&](const char* who) {
    world.tell(di::topic_address, proto::subscribe{"step_finished", who}).value();
  };
  world.tell(di::topic_address, proto::step_finished{}).value(); // nobody listens yet
  subscribe("/a");
  subscribe("/a");
  subscribe("/b");
  world.tell(di::topic_address, proto::step_finished{}).value();
  world.run();
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_EQ(heard[0], heard[1]) << "the body is shared";
  world.tell(di::topic_address, proto::unsubscribe{"step_finished", "/a"}).value();
  world.tell(di::topic_address, proto::step_finished{}).value();
  world.run();
  EXPECT_EQ(heard.size(), 3U);
  EXPECT_EQ(counted("di_topic_facts_unheard_total"), 1);
  EXPECT_EQ(refusal(world.ask(di::topic_address, proto::get_view{})).code, di::ec::unknown_message);
}

} // namespace
