// SPDX-License-Identifier: Apache-2.0
// Experts of a shard over changing placements: loaded before they are asked for, let go of only
// when nobody can ask any more.
#include "engine/core/expert_shard_core.hpp"
#include "tests/support/expert_call.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

using test::only;
using test::sent;

/// One layer, four experts, two ranks with two slots.
std::shared_ptr<const placement> made(std::uint64_t version, std::vector<std::uint32_t> slots) {
  proto::placement_published m;
  m.placement = epoch{version};
  m.view = epoch{1};
  m.ranks = {rank_id{0}, rank_id{1}};
  m.lives = {incarnation{10}, incarnation{11}};
  m.groups.push_back({3, 1, 4, 2, std::move(slots)});
  return std::make_shared<const placement>(placement::from(m).value());
}

std::vector<layer_expert> of_layer(std::vector<std::uint32_t> experts) {
  std::vector<layer_expert> all;
  for (const std::uint32_t e : experts)
    all.push_back({layer_id{3}, e});
  return all;
}

const auto idle = [](const layer_expert&) { return false; };

TEST(expert_slots, loads_what_a_proposal_brings_and_keeps_the_rest) {
  expert_slots slots{rank_id{0}};
  ASSERT_TRUE(slots.install(made(1, {0, 1, 2, 3})));
  EXPECT_FALSE(slots.next_load());
  slots.propose(made(2, {1, 2, 0, 3}));
  EXPECT_EQ(slots.next_load(), (layer_expert{layer_id{3}, 2}));
  EXPECT_FALSE(slots.take_prepared());
  EXPECT_FALSE(slots.holds(layer_id{3}, 2));
  slots.loaded();
  EXPECT_FALSE(slots.next_load());
  const auto done = slots.take_prepared();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->version, epoch{2});
  EXPECT_EQ(done->loaded, 1U);
  EXPECT_FALSE(slots.take_prepared()); // said once,
  slots.propose(made(2, {1, 2, 0, 3}));
  EXPECT_TRUE(slots.take_prepared()); // and again when asked again
  ASSERT_TRUE(slots.install(made(2, {1, 2, 0, 3})));
  EXPECT_FALSE(slots.install(made(2, {1, 2, 0, 3})));
  EXPECT_TRUE(slots.holds(layer_id{3}, 0)) << "ranks may still follow the older one";
  EXPECT_TRUE(slots.holds(layer_id{3}, 2));
  EXPECT_TRUE(slots.take_released(idle).empty());
  slots.retire(epoch{2});
  EXPECT_FALSE(slots.holds(layer_id{3}, 0));
  EXPECT_EQ(slots.take_released(idle), of_layer({0}));
  EXPECT_TRUE(slots.take_released(idle).empty());
}

TEST(expert_slots, lets_go_of_a_proposal_that_another_replaces) {
  expert_slots slots{rank_id{0}};
  ASSERT_TRUE(slots.install(made(1, {0, 1, 2, 3})));
  slots.propose(made(2, {2, 3, 0, 1}));
  slots.loaded();
  slots.propose(made(3, {0, 3, 1, 2})); // 2 is not needed after all, 3 is
  EXPECT_EQ(slots.take_released(idle), of_layer({2}));
  EXPECT_EQ(slots.next_load(), (layer_expert{layer_id{3}, 3}));
  ASSERT_TRUE(slots.install(made(4, {0, 1, 2, 3}))); // and nothing comes of it: a new view
  EXPECT_FALSE(slots.next_load());
  EXPECT_EQ(slots.take_released(idle), of_layer({3}));
}

TEST(expert_slots, takes_back_what_drains) {
  expert_slots slots{rank_id{0}};
  ASSERT_TRUE(slots.install(made(1, {0, 1, 2, 3})));
  ASSERT_TRUE(slots.install(made(2, {1, 2, 0, 3})));
  slots.retire(epoch{2});
  EXPECT_EQ(slots.draining(), 1U);
  const auto open = [](const layer_expert& e) { return e.expert == 0; };
  EXPECT_TRUE(slots.take_released(open).empty());
  slots.propose(made(3, {0, 1, 2, 3}));
  EXPECT_FALSE(slots.next_load()) << "it has not gone yet";
  EXPECT_TRUE(slots.take_prepared());
  EXPECT_TRUE(slots.take_released(idle).empty());
}

TEST(expert_slots, takes_back_what_drains_when_a_view_brings_it) {
  expert_slots slots{rank_id{0}};
  ASSERT_TRUE(slots.install(made(1, {0, 1, 2, 3})));
  ASSERT_TRUE(slots.install(made(2, {1, 2, 0, 3})));
  slots.retire(epoch{2});
  EXPECT_EQ(slots.draining(), 1U);
  ASSERT_TRUE(slots.install(made(3, {0, 1, 2, 3}))); // a call on it is still open
  EXPECT_EQ(slots.draining(), 0U);
  EXPECT_TRUE(slots.take_released(idle).empty());
  EXPECT_TRUE(slots.holds(layer_id{3}, 0));
}

TEST(expert_slots, holds_nothing_where_its_rank_is_not_placed) {
  expert_slots slots{rank_id{7}};
  ASSERT_TRUE(slots.install(made(1, {0, 1, 2, 3})));
  EXPECT_FALSE(slots.holds(layer_id{3}, 0));
  slots.propose(made(2, {1, 0, 2, 3}));
  EXPECT_TRUE(slots.take_prepared());
  for (std::uint64_t v = 3; v < 40; ++v)
    ASSERT_TRUE(slots.install(made(v, {0, 1, 2, 3})));
  EXPECT_LE(slots.followed(), 8U); // bounded though nobody retires any
}

proto::expert_batch call(std::uint64_t id, rank_id caller, std::uint64_t placement,
                         std::vector<std::uint32_t> experts, bool decoding = true) {
  return di::testing::expert_call(id, {caller, placement, 3}, std::move(experts), decoding);
}

TEST(expert_shard_core, frees_a_slot_when_it_is_retired_and_no_call_on_it_is_open) {
  shard_options o;
  o.rank = rank_id{0};
  o.life = incarnation{10};
  o.hidden = 32;
  expert_shard_core core{o};
  outbox out;
  core.install(made(1, {0, 1, 2, 3}));
  core.propose(made(2, {1, 2, 0, 3}), out);
  EXPECT_TRUE(out.empty());
  core.loaded(out);
  EXPECT_EQ(only<proto::placement_prepared>(out).placement, epoch{2});
  core.install(made(2, {1, 2, 0, 3}));
  ASSERT_TRUE(core.on(call(1, rank_id{1}, 1, {0, 1}), {}, out)); // still follows the older one
  core.retire(epoch{2});
  EXPECT_TRUE(core.take_released().empty());
  out.take();
  ASSERT_TRUE(core.on(call(2, rank_id{1}, 1, {0}), {}, out)); // late: refused, and asked elsewhere
  EXPECT_EQ(only<proto::expert_moved>(out).missing, std::vector<std::uint32_t>{0});
  (void)core.next_slice();
  core.finish_slice(out);
  EXPECT_EQ(core.take_released(), of_layer({0}));
  core.check();
}

TEST(expert_shard_core, computes_the_rows_of_an_expert_for_all_callers_together) {
  shard_options o;
  o.rank = rank_id{0};
  o.life = incarnation{10};
  o.hidden = 32;
  o.slice_rows = 64;
  expert_shard_core core{o};
  outbox out;
  core.install(made(1, {0, 1, 2, 3}));
  for (std::uint32_t caller = 0; caller < 30; ++caller)
    ASSERT_TRUE(core.on(call(caller, rank_id{caller}, 1, {0, 1, 0}, caller % 3 != 0), {}, out));
  std::size_t slices = 0, rows = 0;
  while (core.has_work()) {
    const expert_slice& slice = core.next_slice();
    ASSERT_LE(slice.entries.size(), 64U);
    std::size_t runs = 0; // each is one matrix product
    for (std::size_t i = 0; i < slice.entries.size(); ++i) {
      const auto expert = [&](std::size_t at) {
        return slice.entries[at].call->batch.expert[slice.entries[at].entry];
      };
      runs += i == 0 || expert(i) != expert(i - 1) ? 1 : 0;
      EXPECT_EQ(slice.entries[i].call->batch.decoding, slices == 0) << "decode rows go first";
    }
    EXPECT_EQ(runs, 2U);
    rows += slice.entries.size();
    ++slices;
    core.finish_slice(out);
  }
  EXPECT_EQ(rows, 90U);
  EXPECT_EQ(slices, 2U);
  EXPECT_EQ(sent<proto::expert_rows>(out).size(), 30U);
}

} // namespace
} // namespace di::engine
