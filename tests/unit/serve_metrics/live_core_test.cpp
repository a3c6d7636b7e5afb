// SPDX-License-Identifier: Apache-2.0
// What the live page learns from one reading after the other.
#include "launch/serve/live_core.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace di::serve {
namespace {

using nlohmann::json;

proto::kept_rank kept(std::uint32_t rank, std::string state, std::uint32_t deaths = 0,
                      std::string why = {}) {
  proto::kept_rank r;
  r.rank = rank_id{rank};
  r.life = incarnation{100 + rank};
  r.state = std::move(state);
  r.deaths = deaths;
  r.last_reason = std::move(why);
  return r;
}

cluster_reading reading(std::uint64_t view, std::vector<proto::kept_rank> ranks) {
  cluster_reading r;
  r.keeper.emplace();
  r.keeper->view = epoch{view};
  r.keeper->wanted = static_cast<std::uint32_t>(ranks.size());
  r.keeper->ranks = std::move(ranks);
  return r;
}

std::vector<std::string> texts(const live_core& c, std::uint64_t after = 0) {
  std::vector<std::string> all;
  for (const auto& e : c.events())
    if (e.number > after)
      all.push_back(e.kind + ": " + e.text);
  return all;
}

TEST(live_core, tells_who_died_why_and_how_the_group_goes_on) {
  live_core c;
  c.update(reading(4, {kept(0, "member"), kept(1, "member")}), 1'000, 10);
  EXPECT_EQ(texts(c), std::vector<std::string>{"view: view 4 with 2 of 2 ranks"});
  const auto before = c.last_event();
  auto next = reading(
      5, {kept(0, "member"),
          kept(1, "waiting", 1, "rank 1 (pid 5): killed by signal 9 (Killed); its last line: x")});
  next.keeper->ranks[1].wait_ms = 1'500;
  c.update(next, 1'500, 510);
  EXPECT_EQ(texts(c, before),
            (std::vector<std::string>{"death: rank 1 died: killed by signal 9 (Killed)",
                                      "state: rank 1 is waiting (was member), starts in 1.5 s",
                                      "view: view 5: 1 ranks: 0"}));
  c.update(next, 2'000, 1'010);
  EXPECT_EQ(c.last_event(), before + 3) << "nothing new, nothing said";
}

TEST(live_core, a_death_between_two_readings_is_counted) {
  live_core c;
  c.update(reading(4, {kept(0, "member")}), 1'000, 10);
  c.update(reading(6, {kept(0, "member", 1, "killed")}), 9'000, 8'010); // died and came back
  EXPECT_EQ(texts(c, 1).front(), "death: rank 0 died: killed");
}

TEST(live_core, says_when_control_is_away_and_keeps_what_was) {
  live_core c;
  c.update(reading(4, {kept(0, "member")}), 1'000, 1'000);
  cluster_reading nobody;
  nobody.missing = "peer_lost: /control";
  c.update(nobody, 2'000, 2'000);
  c.update(nobody, 2'500, 2'500);
  const auto j = json::parse(c.state_json());
  EXPECT_FALSE(j["control"]);
  EXPECT_EQ(j["why"], "peer_lost: /control");
  EXPECT_EQ(j["ranks"].size(), 1U) << "as they were last";
  c.update(reading(4, {kept(0, "member")}), 4'500, 4'500);
  EXPECT_TRUE(json::parse(c.state_json())["control"]);
  EXPECT_EQ(texts(c, 1),
            (std::vector<std::string>{
                "control: control does not answer: peer_lost: /control",
                "control: control answers again after 2.5 s; ranks went on meanwhile"}));
}

TEST(live_core, rates_follow_totals_and_survive_a_restart_of_the_count) {
  live_core c;
  auto r = reading(1, {kept(0, "member")});
  r.journal.emplace();
  const auto rate = [&] { return json::parse(c.state_json())["rates"]["tokens"].get<double>(); };
  for (int i = 0; i <= 20; ++i) {
    r.journal->tokens = static_cast<std::uint64_t>(50 * i);
    c.update(r, 0, 500 * i);
  }
  EXPECT_NEAR(rate(), 100, 1);
  r.journal->tokens = 3; // another life of control
  c.update(r, 0, 10'500);
  EXPECT_EQ(rate(), 0);
  for (int i = 1; i <= 30; ++i)
    c.update(r, 0, 10'500 + 500 * i);
  EXPECT_EQ(rate(), 0);
}

TEST(live_core, shows_loads_of_ranks_in_the_life_they_are_of) {
  live_core c;
  auto r = reading(1, {kept(0, "member"), kept(1, "member")});
  r.schedule.emplace();
  r.schedule->queued = 7;
  proto::rank_load l;
  l.rank = rank_id{0};
  l.life = incarnation{100};
  l.running = 3;
  l.kv_tokens_total = 1'000;
  l.kv_tokens_free = 250;
  r.schedule->ranks = {l};
  l.rank = rank_id{1};
  l.life = incarnation{7}; // an old one
  r.schedule->ranks.push_back(l);
  r.schedule->assigned = {4, 4};
  c.update(r, 0, 0);
  const auto j = json::parse(c.state_json());
  EXPECT_EQ(j["ranks"][0]["running"], 3);
  EXPECT_EQ(j["ranks"][0]["kv_used"], 750);
  EXPECT_EQ(j["ranks"][0]["requests"], 4);
  EXPECT_FALSE(j["ranks"][1].contains("running"));
  EXPECT_EQ(j["requests"]["queued"], 7);
}

TEST(live_core, draws_heat_as_one_character_per_layer_and_expert) {
  live_core c;
  EXPECT_EQ(c.heat_json(), "");
  cluster_reading r = reading(1, {});
  r.heat.emplace();
  r.heat->counted = true;
  r.heat->ranks = {rank_id{0}, rank_id{3}};
  r.heat->rank_rows = {10, 20};
  r.heat->groups = {{2, 1, 4, {0, 63, 126, 1}, {1, 1, 2, 1}}};
  c.update(r, 0, 0);
  const auto j = json::parse(c.heat_json());
  EXPECT_EQ(j["groups"][0]["cells"], "0Oo0");
  EXPECT_EQ(j["groups"][0]["rows_max"], 126);
  EXPECT_EQ(j["groups"][0]["slots"], 5);
  EXPECT_EQ(j["ranks"], json::parse("[[0,10],[3,20]]"));
}

TEST(live_core, keeps_a_bounded_log_and_hands_it_out_in_parts) {
  live_core c;
  for (std::uint64_t v = 1; v <= 400; ++v)
    c.update(reading(v, {kept(0, "member")}), 0, 0);
  EXPECT_EQ(c.events().size(), live_core::events_max);
  EXPECT_EQ(c.last_event(), 400U);
  const auto [text, last] = c.events_json(0, 10);
  const auto j = json::parse(text);
  EXPECT_EQ(j.size(), 10U);
  EXPECT_EQ(j[0]["n"], 400 - live_core::events_max + 1);
  EXPECT_EQ(last, j[9]["n"].get<std::uint64_t>());
  EXPECT_EQ(c.events_json(400, 10).first, "[]");
}

TEST(live_core, notices_a_control_that_was_back_before_anyone_asked) {
  live_core c;
  auto r = reading(1, {kept(0, "member")});
  r.counters.emplace();
  r.counters->samples = 40;
  c.update(r, 0, 0);
  r.counters->samples = 3;
  c.update(r, 0, 500);
  r.counters->samples = 4;
  c.update(r, 0, 1'000);
  EXPECT_EQ(texts(c, 1), std::vector<std::string>{
                             "control: control was started again; ranks went on meanwhile"});
}

TEST(live_core, tells_moves_of_experts_from_counters) {
  live_core c;
  auto r = reading(1, {kept(0, "member")});
  r.counters.emplace();
  r.counters->counters["di_rebalancer_moves_total"] = 4;
  c.update(r, 0, 0);
  r.counters->counters["di_rebalancer_moves_total"] = 10;
  r.counters->counters["di_rebalancer_moe_lb"] = 1.25;
  c.update(r, 0, 500);
  EXPECT_EQ(texts(c, 1), std::vector<std::string>{"moves: 6 experts move, moe_lb 1.250"});
}

} // namespace
} // namespace di::serve
