// SPDX-License-Identifier: Apache-2.0
// Plans: numbers of ranks, threads, slots and bytes.
#include "launch/memory_model.hpp"
#include "launch/plan.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace di::launch {
namespace {

const engine::checkpoint& demo() {
  static const auto model = engine::checkpoint::open(DI_SOURCE_DIR "/launch/models/demo");
  return model.value();
}

topology with(const std::string& name, const std::vector<std::string>& sets = {}) {
  return load_topology(DI_SOURCE_DIR "/launch/topologies/" + name + ".yaml", sets).value();
}

const machine eight_cores{"here", 8};

} // namespace

TEST(plan, shares_the_cores_of_a_host_among_its_ranks) {
  EXPECT_EQ(make_plan(with("local1"), demo(), eight_cores)->ranks.at(0).threads, 8U);
  EXPECT_EQ(make_plan(with("local4"), demo(), eight_cores)->ranks.at(3).threads, 2U);
  EXPECT_EQ(make_plan(with("ep64"), demo(), eight_cores)->ranks.at(63).threads, 1U);
  // Two node processes on one host are one host.
  EXPECT_EQ(make_plan(with("two_nodes"), demo(), eight_cores)->ranks.at(3).threads, 2U);
  EXPECT_EQ(make_plan(with("local4", {"roles.decode.threads=3"}), demo(), eight_cores)
                ->ranks.at(0)
                .threads,
            3U);
}

TEST(plan, gives_every_expert_a_slot_at_any_size) {
  for (const auto& [ranks, slots] : std::vector<std::pair<int, std::uint32_t>>{
           {1, 32}, {2, 16}, {3, 11}, {5, 7}, {7, 5}, {8, 4}, {33, 1}}) {
    const auto n = std::to_string(ranks);
    const auto p =
        make_plan(with("local1", {"cluster.nodes[0].ranks=" + n, "roles.decode.ep=" + n}), demo(),
                  eight_cores);
    ASSERT_TRUE(p.ok()) << p.error().what;
    EXPECT_EQ(p->groups.at(0).slots, slots) << ranks;
    EXPECT_EQ(p->groups.at(0).experts, 32U);
    EXPECT_GE(p->groups.at(0).slots * p->ranks.size(), 32U);
  }
  EXPECT_EQ(make_plan(with("ep64"), demo(), eight_cores)->groups.at(0).slots, 1U);
}

TEST(plan, counts_dense_weights_for_every_rank_and_experts_by_slot) {
  const auto one = make_plan(with("local1"), demo(), eight_cores)->ranks.at(0).memory;
  const auto four = make_plan(with("local4"), demo(), eight_cores)->ranks.at(0).memory;
  EXPECT_EQ(one.dense_bytes, four.dense_bytes);
  EXPECT_EQ(one.expert_bytes, 4 * four.expert_bytes);
  // fp4 codes and scales of three matrices [64, 192], 8 layers, 32 experts.
  EXPECT_EQ(one.expert_bytes, 8U * 32U * 3U * (64U * 192U / 2U + 64U * 192U / 32U));
  EXPECT_GE(one.shared_bytes(), one.dense_bytes + one.expert_bytes);
  EXPECT_LT(one.shared_bytes(), demo().data_bytes() + (128U << 10U));
}

TEST(plan, refuses_more_copies_of_experts_than_ranks_can_hold) {
  const auto p =
      make_plan(with("local2", {"roles.decode.redundant_experts=33"}), demo(), eight_cores);
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.error().what,
            "--set roles.decode.redundant_experts=33: roles.decode.redundant_experts is 33; 2 "
            "ranks can hold at most 32 copies of "
            "32 experts");
}

TEST(plan, refuses_more_drafts_than_the_model_makes_and_a_short_end_of_a_prompt) {
  const auto errors = [](const std::vector<std::string>& sets) {
    const auto p = make_plan(with("local1", sets), demo(), eight_cores);
    return p.ok() ? "" : p.error().what;
  };
  EXPECT_EQ(errors({"roles.decode.speculation=fixed:5"}), "");
  EXPECT_EQ(errors({"roles.decode.speculation=fixed:6"}),
            "--set roles.decode.speculation=fixed:6: roles.decode.speculation is fixed:6, but the "
            "model makes 5 drafts");
  EXPECT_EQ(errors({"roles.decode.prefill=compact", "roles.decode.prefill_keep=70"}), "");
  EXPECT_EQ(errors({"roles.decode.prefill=compact", "roles.decode.prefill_keep=69"}),
            "--set roles.decode.prefill_keep=69: roles.decode.prefill_keep is 69, the model needs "
            "70 or more (a window of 64 and 6)");
}

TEST(plan, refuses_room_that_a_request_of_full_context_could_not_use) {
  const auto kv = kv_room(demo().spec(), with("local1", {"roles.decode.max_sequences=3"}));
  EXPECT_EQ(kv.fixed_bytes, 3 * kv.sequence_bytes);
  EXPECT_EQ(kv.least_bytes, kv.fixed_bytes + 32 * kv.page_bytes);
  const auto room = [&](std::uint64_t bytes) {
    return make_plan(
        with("local1", {"roles.decode.max_sequences=3", "kv.room=" + std::to_string(bytes) + "B"}),
        demo(), eight_cores);
  };
  const auto enough = room(kv.least_bytes);
  ASSERT_TRUE(enough.ok()) << enough.error().what;
  EXPECT_EQ(enough->ranks.at(0).memory.kv_tokens, 4096U);
  EXPECT_EQ(enough->ranks.at(0).memory.kv_bytes, kv.least_bytes);
  const auto less = room(kv.least_bytes - 1);
  ASSERT_FALSE(less.ok());
  const auto bytes = std::to_string(kv.least_bytes - 1);
  EXPECT_EQ(less.error().what, "--set kv.room=" + bytes + "B: kv.room is " + bytes + " bytes; "
                                   + std::to_string(kv.least_bytes)
                                   + " bytes are needed: " + std::to_string(kv.sequence_bytes)
                                   + " for each of 3 sequences (roles.decode.max_sequences) and "
                                   + std::to_string(32 * kv.page_bytes)
                                   + " for the pages of one full context (4096 positions)");
}

TEST(plan, has_room_for_all_sequences_of_full_context_unless_told_otherwise) {
  const auto p = make_plan(with("local1", {"roles.decode.max_sequences=3"}), demo(), eight_cores);
  EXPECT_EQ(p->ranks.at(0).memory.kv_tokens, 3U * 4096U);
}

TEST(plan, knows_who_is_here_and_who_needs_ssh) {
  const auto far = with("two_nodes", {"cluster.launcher=auto", "cluster.nodes[0].host=here",
                                      "cluster.nodes[1].host=there"});
  const auto p = place_ranks(far, eight_cores);
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->launcher, launcher_kind::ssh);
  EXPECT_EQ(p->nodes.at(0).address, "here");
  EXPECT_EQ(p->nodes.at(1).address, "there");
  EXPECT_FALSE(p->nodes.at(1).local);
  EXPECT_TRUE(p->tcp);
  const auto wrong = place_ranks(with("two_nodes", {"cluster.nodes[1].host=there"}), eight_cores);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().what.find("--set cluster.nodes[1].host=there: "), 0U);
  EXPECT_NE(wrong.error().what.find("launcher local cannot start on host there"),
            std::string::npos);
}

TEST(plan, prints_a_table_and_json_that_agree) {
  const auto t = with("two_nodes");
  const auto p = make_plan(t, demo(), eight_cores).value();
  const auto j = nlohmann::json::parse(plan_json(t, p));
  EXPECT_EQ(j["nodes"].size(), 2U);
  EXPECT_EQ(j["ranks"].size(), 4U);
  EXPECT_EQ(j["ranks"][3]["node"], 1);
  EXPECT_EQ(j["experts"][0]["slots_per_rank"], 8);
  const auto table = plan_table(t, p);
  EXPECT_NE(table.find("two_nodes: 4 ranks on 2 nodes, tcp with CURVE"), std::string::npos)
      << table;
  EXPECT_NE(table.find("layers 0..7: 32 experts, 8 slots on each rank"), std::string::npos)
      << table;
}

} // namespace di::launch
