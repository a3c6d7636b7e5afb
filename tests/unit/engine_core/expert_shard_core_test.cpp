// SPDX-License-Identifier: Apache-2.0
// EXPERT_SHARD's decisions: batching, decode rows first, slices, refusals.
#include "engine/core/expert_shard_core.hpp"
#include "tests/support/expert_call.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

using test::only;
using test::sent;

shard_options small_shard() {
  shard_options o;
  o.rank = rank_id{0};
  o.life = incarnation{10};
  o.hidden = 32;
  o.slice_rows = 4;
  o.decode_turns_max = 2;
  return o;
}

std::shared_ptr<const placement> two_ranks() {
  const std::vector<expert_layers> groups{{0, 4, 4}};
  const std::vector<placed_rank> who{{rank_id{0}, incarnation{10}}, {rank_id{1}, incarnation{11}}};
  return std::make_shared<const placement>(
      placement::contiguous(groups, who, 0, epoch{5}, epoch{1}).value());
}

proto::expert_batch call(std::uint64_t id, std::uint32_t layer, std::vector<std::uint32_t> experts,
                         bool decoding) {
  return di::testing::expert_call(id, {rank_id{1}, 5, layer}, std::move(experts), decoding);
}

std::vector<std::uint32_t> experts_of(const expert_slice& slice) {
  std::vector<std::uint32_t> all;
  for (const slice_entry& e : slice.entries)
    all.push_back(e.call->batch.expert[e.entry]);
  return all;
}

TEST(expert_shard_core, runs_calls_of_one_layer_together_by_expert) {
  expert_shard_core core{small_shard()};
  core.install(two_ranks());
  outbox out;
  ASSERT_TRUE(core.on(call(1, 2, {1, 0}, true), {}, out));
  ASSERT_TRUE(core.on(call(2, 3, {1}, true), {}, out));
  ASSERT_TRUE(core.on(call(3, 2, {0}, true), {}, out));
  EXPECT_EQ(experts_of(core.next_slice()), (std::vector<std::uint32_t>{0, 0, 1}));
  core.finish_slice(out);
  const auto answers = sent<proto::expert_rows>(out);
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0].first, "/rank/1/rank");
  EXPECT_EQ(answers[0].second.rows.size(), 2U * 32 * 2);
  core.check();
  EXPECT_EQ(experts_of(core.next_slice()), std::vector<std::uint32_t>{1});
  core.finish_slice(out);
  EXPECT_FALSE(core.has_work());
  EXPECT_EQ(core.state().calls, 3U);
}

TEST(expert_shard_core, lets_decode_rows_overtake_but_starves_no_prompt) {
  expert_shard_core core{small_shard()};
  core.install(two_ranks());
  outbox out;
  ASSERT_TRUE(core.on(call(1, 0, {1, 0, 1, 0, 1, 0}, false), {}, out));
  EXPECT_EQ(core.next_slice().entries.size(), 4U); // a slice, not the whole call
  core.finish_slice(out);
  EXPECT_TRUE(sent<proto::expert_rows>(out).empty());
  for (std::uint64_t id = 2; id <= 5; ++id)
    ASSERT_TRUE(core.on(call(id, static_cast<std::uint32_t>(id) % 4, {0}, true), {}, out));
  std::vector<std::uint64_t> order;
  while (core.has_work()) {
    order.push_back(core.next_slice().entries[0].call->batch.call.v);
    core.finish_slice(out);
    core.check();
  }
  EXPECT_EQ(order, (std::vector<std::uint64_t>{2, 3, 1, 4, 5}));
}

TEST(expert_shard_core, answers_moved_for_what_it_does_not_hold) {
  expert_shard_core core{small_shard()};
  core.install(two_ranks());
  outbox out;
  ASSERT_TRUE(core.on(call(1, 0, {0, 3, 2, 3}, true), {}, out));
  const auto moved = only<proto::expert_moved>(out);
  EXPECT_EQ(moved.missing, (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(moved.placement, epoch{5});
  EXPECT_FALSE(core.has_work());
}

std::shared_ptr<const placement> alone(std::uint64_t version) {
  const std::vector<expert_layers> groups{{0, 4, 4}};
  const std::vector<placed_rank> who{{rank_id{0}, incarnation{10}}};
  return std::make_shared<const placement>(
      placement::contiguous(groups, who, 0, epoch{version}, epoch{2}).value());
}

TEST(expert_shard_core, holds_a_call_until_the_placement_that_it_was_made_under) {
  shard_options options = small_shard();
  options.held_max = 2;
  expert_shard_core core{options};
  core.install(two_ranks());
  outbox out;
  auto newer = call(2, 0, {3}, true);
  newer.placement = epoch{6}; // the caller knows better
  ASSERT_TRUE(core.on(newer, {}, out));
  ASSERT_TRUE(core.on(newer, {}, out)); // asked twice
  EXPECT_FALSE(core.has_work());
  ASSERT_TRUE(core.on(proto::ask_call{newer.call, rank_id{1}, newer.life}, {}, out));
  EXPECT_TRUE(only<proto::call_known>(out).queued);
  auto newest = call(3, 0, {2}, true);
  newest.placement = epoch{9};
  ASSERT_TRUE(core.on(newest, {}, out));
  auto one_more = call(4, 0, {2}, true);
  one_more.placement = epoch{9};
  EXPECT_TRUE(sent<proto::expert_failed>(out).empty());
  ASSERT_TRUE(core.on(one_more, {}, out));
  EXPECT_EQ(only<proto::expert_failed>(out).code, ec::unavailable);
  core.check();

  core.install(alone(6));
  core.take_held({}, out);
  EXPECT_EQ(core.state().queued, 2U) << "held by this placement, both may run";
  EXPECT_EQ(experts_of(core.next_slice()), (std::vector<std::uint32_t>{2, 3}));
  core.finish_slice(out);
  EXPECT_EQ(sent<proto::expert_rows>(out).size(), 2U);
}

TEST(expert_shard_core, answers_moved_to_held_calls_once_a_placement_says_so) {
  expert_shard_core core{small_shard()};
  core.install(two_ranks());
  outbox out;
  auto newer = call(2, 0, {3}, true);
  newer.placement = epoch{6};
  ASSERT_TRUE(core.on(newer, {}, out));
  const std::vector<expert_layers> groups{{0, 4, 4}};
  const std::vector<placed_rank> who{{rank_id{0}, incarnation{10}}, {rank_id{1}, incarnation{11}}};
  core.install(std::make_shared<const placement>(
      placement::contiguous(groups, who, 0, epoch{7}, epoch{1}).value()));
  core.take_held({}, out);
  EXPECT_EQ(only<proto::expert_moved>(out).missing, (std::vector<std::uint32_t>{3}));
}

TEST(expert_shard_core, drops_calls_of_lives_that_left_and_knows_when_it_is_out_itself) {
  expert_shard_core core{small_shard()};
  core.install(two_ranks());
  outbox out;
  proto::expert_batch theirs = call(1, 0, {0}, true);
  theirs.life = incarnation{11};
  ASSERT_TRUE(core.on(theirs, {}, out));
  theirs.call = call_id{2};
  theirs.decoding = false;
  ASSERT_TRUE(core.on(theirs, {}, out));
  theirs.call = call_id{3};
  theirs.placement = epoch{50};
  theirs.expert = {3};
  ASSERT_TRUE(core.on(theirs, {}, out));
  ASSERT_EQ(core.state().queued, 3U);
  const proto::view_member self{rank_id{0}, {}, incarnation{10}, "/rank/0"};
  const proto::view_member other{rank_id{1}, {}, incarnation{11}, "/rank/1"};
  const proto::view_member again{rank_id{1}, {}, incarnation{12}, "/rank/1"};
  EXPECT_TRUE(core.install_view({epoch{1}, {self, other}}));
  EXPECT_EQ(core.state().queued, 3U);
  EXPECT_TRUE(core.install_view({epoch{2}, {self, again}}));
  EXPECT_EQ(core.state().queued, 0U);
  EXPECT_TRUE(core.install_view({epoch{1}, {other}})) << "an old view says nothing";
  EXPECT_FALSE(core.install_view({epoch{3}, {again}}));
  core.check();
}

TEST(expert_shard_core, refuses_calls_that_make_no_sense) {
  expert_shard_core core{small_shard()};
  core.install(two_ranks());
  const auto code = [&](const proto::expert_batch& m) {
    outbox out;
    EXPECT_TRUE(core.on(m, {}, out));
    const auto failed = sent<proto::expert_failed>(out);
    return failed.size() == 1 ? failed[0].second.code : ec::ok;
  };
  auto m = call(1, 0, {0}, true);
  m.hidden = 64;
  EXPECT_EQ(code(m), ec::bad_shape);
  m = call(1, 0, {0}, true);
  m.row[0] = 1;
  EXPECT_EQ(code(m), ec::bad_argument);
  m = call(1, 0, {4}, true);
  EXPECT_EQ(code(m), ec::bad_argument);
  m = call(1, 9, {0}, true);
  EXPECT_EQ(code(m), ec::bad_argument);
  m = call(1, 0, {0}, true);
  m.weight.clear();
  EXPECT_EQ(code(m), ec::bad_shape);
  m = call(1, 0, {0}, true);
  m.codes = {};
  EXPECT_EQ(code(m), ec::bad_shape);
  m = call(1, 0, {}, true);
  EXPECT_EQ(code(m), ec::limit_exceeded);
  EXPECT_FALSE(core.has_work());
}

TEST(expert_shard_core, knows_which_calls_wait) {
  expert_shard_core core{small_shard()};
  core.install(two_ranks());
  outbox out;
  ASSERT_TRUE(core.on(call(1, 0, {0}, true), {}, out));
  ASSERT_TRUE(core.on(call(1, 0, {0}, true), {}, out)); // asked twice: queued once
  EXPECT_EQ(core.state().queued, 1U);
  ASSERT_TRUE(core.on(proto::ask_call{call_id{1}, rank_id{1}, incarnation{11}}, {}, out));
  EXPECT_TRUE(only<proto::call_known>(out).queued);
  out.take();
  ASSERT_TRUE(core.on(proto::ask_call{call_id{1}, rank_id{1}, incarnation{12}}, {}, out));
  EXPECT_FALSE(only<proto::call_known>(out).queued);
  (void)core.next_slice();
  core.fail_slice({ec::device_lost, "gone"}, out);
  EXPECT_EQ(only<proto::expert_failed>(out).code, ec::device_lost);
  EXPECT_FALSE(core.has_work());
}

} // namespace
} // namespace di::engine
