// SPDX-License-Identifier: Apache-2.0
// What a run is worth: every way to be wrong is seen.
#include "chaos/report.hpp"
#include "chaos/verdict.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace di::chaos {
namespace {

std::string line(int id, const std::string& ids) {
  return fmt::format("{{\"id\":{},\"ids\":[{}],\"timings\":{{\"submitted_ms\":0,\"token_ms\":[1,2,"
                     "3],\"ranks\":[[0,0]]}}}}\n",
                     id, ids);
}

log_event view(std::int64_t at_us, int number, std::string lives) {
  return {at_us,
          "/control",
          "info",
          "view_committed",
          {{"view", std::to_string(number)}, {"lives", std::move(lives)}}};
}

struct verdicts {
  verdicts() {
    p.work.requests = 2;
    p.work.after = 0;
    run.exit_code = 0;
    run.answers = line(0, "5,6,7") + line(1, "8,9,10");
    run.events = {view(10, 1, "0:a,1:b,2:c")};
    reference = *read_answers(run.answers);
  }
  verdict judged() const { return judge(p, reference, run, 3); }
  void strikes(std::uint32_t rank, std::int64_t at_us) {
    injected f;
    f.what = fmt::format("kill rank {}", rank);
    f.ranks = {rank};
    f.begin_us = at_us;
    run.faults.push_back(std::move(f));
  }
  plan p;
  run_record run;
  std::vector<answer> reference;
};

TEST(verdict, holds_for_a_run_that_is_as_it_should_be) {
  const verdict v = verdicts{}.judged();
  EXPECT_TRUE(v.held) << fmt::format("{}", fmt::join(v.broken, "; "));
  EXPECT_EQ(v.identical, 2U);
  EXPECT_EQ(v.members, 3U);
}

TEST(verdict, tells_lost_doubled_reordered_and_changed_tokens_apart) {
  verdicts s;
  s.run.answers = line(0, "5,6") + line(1, "8,9,10");
  EXPECT_EQ(s.judged().tokens_lost, 1U);
  s.run.answers = line(0, "5,6,6,7") + line(1, "8,9,10");
  EXPECT_EQ(s.judged().tokens_doubled, 1U);
  s.run.answers = line(0, "5,7,6") + line(1, "8,9,10");
  EXPECT_EQ(s.judged().tokens_reordered, 2U);
  s.run.answers = line(0, "5,6,1") + line(1, "8,9,10");
  const verdict v = s.judged();
  EXPECT_EQ(v.tokens_changed, 1U);
  EXPECT_FALSE(v.held);
}

TEST(verdict, is_broken_by_failures_missing_answers_exit_codes_and_leaks) {
  verdicts failed;
  failed.run.answers = line(0, "5,6,7") + "{\"id\":1,\"error\":{\"code\":\"deadline_exceeded\"}}\n";
  EXPECT_FALSE(failed.judged().held);
  failed.p.expect.failed_max = 1;
  EXPECT_TRUE(failed.judged().held);

  verdicts missing;
  missing.run.answers = line(0, "5,6,7");
  EXPECT_FALSE(missing.judged().held);
  verdicts code;
  code.run.exit_code = 3;
  EXPECT_FALSE(code.judged().held);
  verdicts twice;
  twice.run.answers = line(0, "5,6,7") + line(0, "5,6,7");
  EXPECT_FALSE(twice.judged().held);
  verdicts leak;
  leak.run.leaks = {"/dev/shm/di-x"};
  EXPECT_FALSE(leak.judged().held);
  verdicts piled;
  piled.run.before["control"] = {7, 40};
  piled.run.after["control"] = {7, 60};
  EXPECT_TRUE(piled.judged().held);
  for (int n = 2; n < 42; ++n) // one for each rank that left and came back
    piled.run.events.push_back(
        view(10 * n, n, n % 2 == 0 ? "0:a,1:b" : fmt::format("0:a,1:b,2:{}", n)));
  piled.p.expect.others_leave = true;
  EXPECT_TRUE(piled.judged().held);
  piled.run.after["control"] = {7, 80};
  EXPECT_FALSE(piled.judged().held);
  verdicts idle; // its links open when it gets its first request
  idle.run.before = {{"rank 0", {8, 300}}, {"rank 1", {9, 90}}};
  idle.run.after = {{"rank 0", {8, 310}}, {"rank 1", {9, 310}}};
  EXPECT_TRUE(idle.judged().held);
  idle.run.after["rank 1"] = {9, 340};
  EXPECT_FALSE(idle.judged().held);
  verdicts nobody;
  nobody.strikes(1, 1'000'000);
  nobody.run.faults[0].trouble = nobody_there;
  EXPECT_FALSE(nobody.judged().held);
  nobody.p.expect.late_faults = true;
  EXPECT_TRUE(nobody.judged().held) << "faults of a soak may fall on who is away";
  verdicts never;
  never.run.faults_missing = 1;
  EXPECT_FALSE(never.judged().held);
}

TEST(verdict, follows_a_fault_to_detection_commit_repair_and_return) {
  verdicts s;
  s.strikes(1, 1'000'000);
  s.run.events.push_back(
      {1'004'000, "/control", "warn", "member_lost", {{"rank", "1"}, {"life", "b"}}});
  s.run.events.push_back(view(1'010'000, 2, "0:a,2:c"));
  s.run.events.push_back({1'030'000, "/control", "info", "placement_settled", {{"view", "2"}}});
  s.run.events.push_back(view(1'900'000, 3, "0:a,1:d,2:c"));
  s.p.expect.expelled = range{1, 1};
  s.p.expect.views = range{2, 2};
  const verdict v = s.judged();
  EXPECT_TRUE(v.held) << fmt::format("{}", fmt::join(v.broken, "; "));
  ASSERT_EQ(v.faults.size(), 1U);
  EXPECT_DOUBLE_EQ(v.faults[0].detect_ms.value_or(0), 4);
  EXPECT_DOUBLE_EQ(v.faults[0].commit_ms.value_or(0), 10);
  EXPECT_DOUBLE_EQ(v.faults[0].repair_ms.value_or(0), 30);
  EXPECT_DOUBLE_EQ(v.faults[0].rejoin_ms.value_or(0), 900);
  EXPECT_EQ(v.joined, 1U);
  EXPECT_EQ(v.false_expulsions, 0U);
}

TEST(verdict, sees_the_expulsion_of_a_rank_that_nothing_happened_to) {
  verdicts s;
  s.strikes(1, 1'000'000);
  s.run.events.push_back(view(1'010'000, 2, "1:b,2:c"));
  EXPECT_EQ(s.judged().false_expulsions, 1U);
  EXPECT_FALSE(s.judged().held);
}

TEST(verdict, lets_a_fault_excuse_one_life_of_its_rank) {
  verdicts s;
  s.strikes(1, 1'000'000);
  s.run.events.push_back(view(1'010'000, 2, "0:a,2:c"));
  s.run.events.push_back(view(1'500'000, 3, "0:a,1:d,2:c"));
  EXPECT_EQ(s.judged().false_expulsions, 0U);
  s.run.events.push_back(view(2'000'000, 4, "0:a,2:c"));
  EXPECT_EQ(s.judged().false_expulsions, 1U); // nothing happened to its second life
  s.strikes(1, 1'005'000);                    // once more before the first had left
  EXPECT_EQ(s.judged().false_expulsions, 1U);
  s.strikes(1, 1'900'000);
  EXPECT_EQ(s.judged().false_expulsions, 0U);
}

TEST(verdict, lets_an_armed_fault_excuse_the_life_that_it_met) {
  verdicts s;
  s.strikes(1, 1'000'000);
  s.run.faults[0].armed = true; // waits in the rank when another fault ends it
  s.strikes(1, 1'002'000);
  s.run.events.push_back(view(1'010'000, 2, "0:a,2:c"));
  s.run.events.push_back(view(1'100'000, 3, "0:a,1:d,2:c"));
  s.run.events.push_back(view(1'200'000, 4, "0:a,2:c"));
  EXPECT_EQ(s.judged().false_expulsions, 0U);
  s.run.events.push_back(view(1'300'000, 5, "0:a,1:e,2:c"));
  s.run.events.push_back(view(1'400'000, 6, "0:a,2:c"));
  EXPECT_EQ(s.judged().false_expulsions, 1U);
}

TEST(verdict, follows_a_hang_from_the_word_of_the_process_that_hangs) {
  verdicts s;
  s.strikes(1, 1'000'000);
  s.run.faults[0].kind = fault_kind::hang;
  s.run.faults[0].armed = true;
  s.run.events.push_back({1'050'000, "/rank/2", "warn", "hangs_on_purpose", {}}); // another's
  s.run.events.push_back({1'100'000, "/rank/1", "warn", "hangs_on_purpose", {}});
  s.run.events.push_back(
      {1'400'000, "/control", "warn", "member_stuck", {{"rank", "1"}, {"life", "b"}}});
  s.run.events.push_back(view(1'410'000, 2, "0:a,2:c"));
  const verdict v = s.judged();
  EXPECT_EQ(v.false_expulsions, 0U);
  ASSERT_EQ(v.faults.size(), 1U);
  EXPECT_DOUBLE_EQ(v.faults[0].detect_ms.value_or(0), 300);
  EXPECT_DOUBLE_EQ(v.faults[0].commit_ms.value_or(0), 310);
}

TEST(verdict, sees_a_view_that_is_too_small) {
  verdicts s;
  s.strikes(1, 5);
  s.run.events.push_back(view(20, 2, "0:a,2:c"));
  s.run.events.push_back(view(30, 3, "0:a,1:d,2:c"));
  s.p.expect.members_min = 2;
  EXPECT_TRUE(s.judged().held);
  s.p.expect.members_min = 3;
  EXPECT_FALSE(s.judged().held);
}

TEST(verdict, demands_counters_that_are_above_zero) {
  verdicts s;
  s.p.expect.counters = {"di_a_total"};
  EXPECT_FALSE(s.judged().held);
  const auto says = [&](std::string totals) {
    s.run.events.push_back(
        {2'000'000, "/rank/1", "info", "process_counters", {{"counters", std::move(totals)}}});
  };
  says("di_b_total=3 di_a_total=0 di_aa_total=1");
  EXPECT_FALSE(s.judged().held);
  says("di_b_total=3 di_a_total=2.5e+05");
  EXPECT_TRUE(s.judged().held);
}

TEST(verdict, measures_the_pause_of_a_return_in_a_view_of_its_own) {
  verdicts s;
  s.run.answers = "";
  for (int id = 0; id < 2; ++id)
    s.run.answers += fmt::format(
        "{{\"id\":{},\"ids\":[1,2,3,4,5,6,7],\"timings\":{{\"submitted_ms\":0,\"token_ms\":[10,"
        "20,30,40,50,60,{}],\"ranks\":[[0,0]]}}}}\n",
        id, id == 0 ? 75 : 70);
  s.reference = *read_answers(s.run.answers);
  s.run.events.insert(s.run.events.begin(), {1'000'000, "/control", "info", "batch_began", {}});
  s.strikes(1, 1'030'000);
  s.run.events.push_back(view(1'035'000, 2, "0:a,2:c"));
  s.run.events.push_back(view(1'065'000, 3, "0:a,1:d,2:c"));
  verdict v = s.judged();
  ASSERT_EQ(v.faults.size(), 1U);
  EXPECT_EQ(v.faults[0].rejoin_pause.count, 2U);
  EXPECT_NEAR(v.faults[0].rejoin_pause.max, 5, 1e-6);
  EXPECT_NE(peers_table({v}).find("of 2; a step: 10.0 ms | <= one step"), std::string::npos)
      << peers_table({v});
  EXPECT_NE(peers_table({v}).find("| 2 of 2 |"), std::string::npos);
  EXPECT_NE(figures_json({v}).find("\"pause_rejoin\":{\"count\":2"), std::string::npos);

  s.run.events.pop_back(); // lost and back at once: the wait is the fault's
  s.run.events.back() = view(1'065'000, 2, "0:a,1:d,2:c");
  EXPECT_EQ(s.judged().faults[0].rejoin_pause.count, 0U);
}

TEST(verdict, demands_that_a_jump_of_the_clock_was_seen) {
  verdicts s;
  s.strikes(0, 1'000'000);
  s.run.faults[0].kind = fault_kind::clock_jump;
  constexpr std::int64_t year_us = 1'796'000'000'000'000, hour_us = 3'600'000'000;
  const auto says = [&](std::int64_t mono_us, std::int64_t wall_us) {
    s.run.events.push_back({mono_us, "/control", "info", "batch_progress", {}, wall_us});
  };
  says(900'000, year_us + 900'000);
  says(1'100'000, year_us + 1'100'000);
  EXPECT_FALSE(s.judged().held);
  says(1'200'000, year_us + 1'200'000 + hour_us);
  EXPECT_TRUE(s.judged().held);
}

TEST(verdict, takes_a_cut_link_for_no_reason_to_expel) {
  verdicts s;
  s.strikes(1, 1'000'000);
  s.run.faults[0].kind = fault_kind::cut;
  s.run.events.push_back(view(1'010'000, 2, "0:a,2:c"));
  EXPECT_EQ(s.judged().false_expulsions, 1U);
}

TEST(verdict, takes_a_command_for_a_reason_only_of_ranks_that_it_takes_out) {
  verdicts s;
  s.strikes(1, 1'000'000);
  s.run.faults[0].kind = fault_kind::command;
  s.run.events.push_back(
      {1'005'000, "/control", "info", "rank_state", {{"rank", "1"}, {"state", "draining"}}});
  s.run.events.push_back(view(1'010'000, 2, "0:a,2:c"));
  EXPECT_EQ(s.judged().false_expulsions, 0U);
  s.run.events.push_back(view(1'020'000, 3, "0:a"));
  EXPECT_EQ(s.judged().false_expulsions, 1U);
}

TEST(verdict, takes_a_command_for_a_reason_only_of_the_life_that_it_took_out) {
  verdicts s;
  s.strikes(1, 1'000'000);
  s.run.faults[0].kind = fault_kind::command;
  s.run.events.push_back(
      {1'005'000, "/control", "info", "rank_state", {{"rank", "1"}, {"state", "draining"}}});
  s.run.events.push_back(view(1'010'000, 2, "0:a,2:c"));
  s.run.events.push_back(view(1'500'000, 3, "0:a,1:d,2:c"));
  s.run.events.push_back(view(2'000'000, 4, "0:a,2:c"));
  EXPECT_EQ(s.judged().false_expulsions, 1U);
}

TEST(report, names_what_is_broken_for_people_and_programs) {
  verdicts s;
  s.run.exit_code = 3;
  const verdict v = s.judged();
  const report_facts facts{"p", "local4", "abc", "m", 3, 1, {"F1"}};
  EXPECT_NE(to_text(facts, v).find("BROKEN"), std::string::npos);
  EXPECT_NE(to_json(facts, v).find("\"held\": false"), std::string::npos);
  EXPECT_NE(peers_table({v}).find("Tarragon"), std::string::npos);
}

} // namespace
} // namespace di::chaos
