// SPDX-License-Identifier: Apache-2.0
// Expert calls from the caller's side: grouping, answers in any order, other holders.
#include "engine/core/expert_call_core.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace di::engine {
namespace {

std::shared_ptr<const placement> place(std::uint32_t ranks, std::uint32_t redundant,
                                       std::uint64_t version, std::uint32_t without = ~0U) {
  std::vector<placed_rank> who;
  for (std::uint32_t r = 0; r < ranks; ++r)
    if (r != without)
      who.push_back({rank_id{r}, incarnation{10 + r}});
  const std::vector<expert_layers> groups{{0, 4, 4}};
  return std::make_shared<const placement>(
      placement::contiguous(groups, who, redundant, epoch{version}, epoch{version}).value());
}

const std::vector<std::int32_t> two_rows{0, 2, 1, 3}; // [2, 2]

TEST(expert_call_core, asks_each_holder_once_with_ascending_experts) {
  expert_call_core core{rank_id{0}, {{}, std::chrono::seconds{1}}};
  core.install(place(2, 0, 1));
  ASSERT_TRUE(core.begin({layer_id{1}, 2, 2, two_rows}));
  const auto calls = core.take_unsent({});
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_TRUE(calls[0]->local);
  EXPECT_EQ(calls[1]->holder, (placed_rank{rank_id{1}, incarnation{11}}));
  EXPECT_EQ(calls[1]->rows, (std::vector<std::uint32_t>{0, 1}));
  ASSERT_EQ(calls[1]->entries.size(), 2U);
  EXPECT_EQ(calls[1]->entries[0].expert, 2U);
  EXPECT_EQ(calls[1]->entries[1].slot, 3U);
  EXPECT_TRUE(core.take_unsent({}).empty());
  core.check();
}

TEST(expert_call_core, splits_what_one_answer_cannot_hold) {
  expert_call_core core{rank_id{0}, {{}, std::chrono::seconds{1}, 2 * 2 * 64}};
  core.install(place(2, 0, 1));
  const std::vector<std::int32_t> routed{0, 2, 0, 2, 2, 3, 1, 3}; // [4, 2]; rank 1 holds 2 and 3
  ASSERT_TRUE(core.begin({layer_id{1}, 4, 2, routed, 64}));
  const auto calls = core.take_unsent({});
  ASSERT_EQ(calls.size(), 5U);
  EXPECT_EQ(core.local_open().size(), 2U);
  std::vector<int> asked(routed.size());
  std::vector<call_id> ids;
  for (const expert_call* call : calls) {
    EXPECT_LE(call->entries.size(), 2U);
    ids.push_back(call->id);
    for (const call_entry& e : call->entries) {
      ++asked[e.slot];
      EXPECT_EQ(e.expert, static_cast<std::uint32_t>(routed[e.slot]));
      EXPECT_NE(std::find(call->rows.begin(), call->rows.end(), e.row), call->rows.end());
    }
  }
  EXPECT_EQ(asked, std::vector<int>(routed.size(), 1));
  core.check();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_FALSE(core.complete());
    const bool short_one = !core.answered(ids[i], 2);
    EXPECT_EQ(short_one, i == 1 || i == 4);
    if (short_one) {
      EXPECT_TRUE(core.answered(ids[i], 1));
    }
  }
  EXPECT_TRUE(core.complete());
}

TEST(expert_call_core, does_not_take_answers_to_an_earlier_life) {
  expert_call_core before{rank_id{0}, {incarnation{7}}}, after{rank_id{0}, {incarnation{8}}};
  std::set<call_id> old;
  for (expert_call_core* core : {&before, &after}) {
    core->install(place(2, 0, 1));
    for (int layer = 0; layer < 100; ++layer) {
      ASSERT_TRUE(core->begin({layer_id{1}, 2, 2, two_rows}));
      for (const expert_call* call : core->take_unsent({}))
        EXPECT_TRUE(old.insert(call->id).second);
      core->abandon();
    }
  }
  ASSERT_TRUE(after.begin({layer_id{1}, 2, 2, two_rows}));
  for (const call_id id : old)
    EXPECT_FALSE(after.answered(id, 2));
}

TEST(expert_call_core, takes_each_answer_once) {
  expert_call_core core{rank_id{0}, {{}, std::chrono::seconds{1}}};
  core.install(place(2, 0, 1));
  ASSERT_TRUE(core.begin({layer_id{1}, 2, 2, two_rows}));
  const auto calls = core.take_unsent({});
  const call_id first = calls[0]->id, second = calls[1]->id;
  EXPECT_FALSE(core.answered(second, 1)); // of the wrong size
  EXPECT_TRUE(core.answered(second, 2));
  EXPECT_FALSE(core.answered(second, 2));
  EXPECT_FALSE(core.complete());
  EXPECT_TRUE(core.answered(first, 2));
  EXPECT_TRUE(core.complete());
  EXPECT_FALSE(core.answered(first, 2));
  core.check();
}

TEST(expert_call_core, asks_another_holder_when_one_is_lost) {
  expert_call_core core{rank_id{0}, {{}, std::chrono::seconds{1}}};
  core.install(place(4, 4, 1)); // two slots each: every expert twice
  ASSERT_TRUE(core.begin({layer_id{0}, 1, 2, std::vector<std::int32_t>{2, 3}}));
  const auto calls = core.take_unsent({});
  ASSERT_EQ(calls.size(), 1U);
  const call_id old = calls[0]->id;
  const placed_rank dead = calls[0]->holder;
  core.lost(dead.rank, dead.life);
  core.check();
  const auto again = core.take_unsent({});
  ASSERT_EQ(again.size(), 1U);
  EXPECT_NE(again[0]->holder, dead);
  EXPECT_FALSE(core.answered(old, 2)); // a late answer of the dead
  EXPECT_TRUE(core.answered(again[0]->id, 2));
  EXPECT_TRUE(core.complete());
}

TEST(expert_call_core, parks_what_nobody_holds_until_the_next_placement) {
  expert_call_core core{rank_id{0}, {{}, std::chrono::seconds{1}}};
  core.install(place(2, 0, 1));
  ASSERT_TRUE(core.begin({layer_id{0}, 1, 2, std::vector<std::int32_t>{1, 3}}));
  const auto calls = core.take_unsent({});
  ASSERT_TRUE(core.answered(calls[0]->id, 1));
  core.lost(rank_id{1}, incarnation{11});
  EXPECT_EQ(core.parked(), 1U);
  EXPECT_FALSE(core.complete());
  core.install(place(2, 0, 1)); // not newer
  EXPECT_EQ(core.parked(), 1U);
  core.install(place(2, 0, 2, 1));
  const auto again = core.take_unsent({});
  ASSERT_EQ(again.size(), 1U);
  EXPECT_TRUE(again[0]->local);
  EXPECT_EQ(again[0]->entries[0].slot, 1U);
  EXPECT_TRUE(core.answered(again[0]->id, 1));
  EXPECT_TRUE(core.complete());
  core.check();
}

TEST(expert_call_core, does_not_ask_again_who_says_moved) {
  expert_call_core core{rank_id{0}, {{}, std::chrono::seconds{1}}};
  core.install(place(4, 4, 1));
  ASSERT_TRUE(core.begin({layer_id{0}, 1, 2, std::vector<std::int32_t>{2, 3}}));
  const auto calls = core.take_unsent({});
  proto::expert_moved no;
  no.call = calls[0]->id;
  const placed_rank first = calls[0]->holder;
  core.moved(no);
  const auto second = core.take_unsent({});
  ASSERT_EQ(second.size(), 1U);
  EXPECT_NE(second[0]->holder, first);
  no.call = second[0]->id;
  core.moved(no);
  EXPECT_EQ(core.parked(), 2U);
  core.check();
}

TEST(expert_call_core, asks_about_late_calls_and_repeats_only_forgotten_ones) {
  expert_call_core core{rank_id{0}, {{}, std::chrono::seconds{1}}};
  core.install(place(1, 0, 1));
  ASSERT_TRUE(core.begin({layer_id{0}, 1, 2, std::vector<std::int32_t>{2, 3}}));
  const instant t0{5};
  const call_id call = core.take_unsent(t0)[0]->id;
  EXPECT_TRUE(core.take_late(t0 + std::chrono::milliseconds{999}).empty());
  const auto late = core.take_late(t0 + std::chrono::seconds{1});
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0]->first_sent, t0); // a question does not make it younger
  EXPECT_TRUE(core.take_late(t0 + std::chrono::seconds{1}).empty());
  EXPECT_TRUE(core.take_unsent(t0).empty());
  core.forgotten(call);
  core.forgotten(call);
  ASSERT_EQ(core.take_unsent(t0).size(), 1U);
  core.abandon();
  EXPECT_FALSE(core.answered(call, 2));
  EXPECT_TRUE(core.complete());
}

TEST(expert_call_core, refuses_experts_that_do_not_exist) {
  expert_call_core core{rank_id{0}, {{}, std::chrono::seconds{1}}};
  core.install(place(1, 0, 1));
  const auto begun = core.begin({layer_id{0}, 1, 2, std::vector<std::int32_t>{2, 4}});
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().what, "layer 0 routes to expert 4, the placement has 4");
}

} // namespace
} // namespace di::engine
