// SPDX-License-Identifier: Apache-2.0
// What operators see of expert loads: kept over plans, fading, shared by copies.
#include "engine/core/expert_shard_core.hpp"
#include "engine/core/rebalancer_core.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

struct heated {
  rebalancer_core core;
  outbox out;

  explicit heated(rebalance_mode mode) : core{options(mode)} {
    const std::vector<placed_rank> who{{rank_id{0}, incarnation{10}},
                                       {rank_id{1}, incarnation{11}}};
    EXPECT_TRUE(core.install_view(epoch{1}, who, {}, out));
    for (const rank_id r : {rank_id{0}, rank_id{1}})
      for (const address& a : {rank_path(r), shard_path(r)})
        EXPECT_TRUE(core.on(proto::placement_installed{a, core.current().version(), {}}, {}, out));
  }
  static rebalancer_options options(rebalance_mode mode) {
    rebalancer_options o;
    o.groups = {{0, 2, 4}, {2, 1, 2}};
    o.redundant = 0;
    o.policy.mode = mode;
    o.policy.interval_steps = 8;
    return o;
  }
  void load(const std::vector<std::uint32_t>& rows) {
    proto::expert_load m;
    m.rank = rank_id{0};
    m.life = incarnation{10};
    m.placement = core.current().version();
    m.steps = 4;
    m.bins = 1;
    m.groups = {{0, 2, 4}, {2, 1, 2}};
    pack_counts(rows, m.rows);
    EXPECT_TRUE(core.on(m, {}, out));
  }
  proto::expert_heat heat() const { return *core.on(proto::get_heat{}); }
};

TEST(rebalancer_heat, shows_rows_per_layer_and_expert_and_per_rank) {
  heated h{rebalance_mode::automatic};
  h.load({10, 20, 1, 2, 5, 0, 0, 0, 3, 4});
  const auto m = h.heat();
  EXPECT_TRUE(m.counted);
  ASSERT_EQ(m.groups.size(), 2U);
  EXPECT_EQ(m.groups[0].rows, (std::vector<std::uint32_t>{10, 20, 1, 2, 5, 0, 0, 0}));
  EXPECT_EQ(m.groups[0].copies, std::vector<std::uint32_t>(8, 1));
  EXPECT_EQ(m.groups[1].first_layer, 2U);
  EXPECT_EQ(m.groups[1].rows, (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(m.ranks, (std::vector<rank_id>{rank_id{0}, rank_id{1}}));
  EXPECT_EQ(m.rank_rows, (std::vector<std::uint64_t>{10 + 20 + 5 + 3, 1 + 2 + 4}));
  EXPECT_EQ(m.view, epoch{1});
}

TEST(rebalancer_heat, older_rows_count_half_after_an_interval) {
  heated h{rebalance_mode::automatic};
  for (int i = 0; i < 3; ++i) // the first window may have begun before the placement
    h.load({8, 8, 8, 8, 8, 8, 8, 8, 8, 8});
  EXPECT_EQ(h.heat().groups[0].rows[0], 12U) << "two intervals: all 24 rows faded once";
}

TEST(rebalancer_heat, says_when_nobody_counts) {
  heated h{rebalance_mode::off};
  h.load({8, 8, 8, 8, 8, 8, 8, 8, 8, 8});
  const auto m = h.heat();
  EXPECT_FALSE(m.counted);
  EXPECT_EQ(m.groups[0].rows, std::vector<std::uint32_t>(8, 0));
}

TEST(rebalancer_heat, answers_before_the_first_view) {
  const rebalancer_core core{heated::options(rebalance_mode::automatic)};
  const auto m = *core.on(proto::get_heat{});
  EXPECT_TRUE(m.ranks.empty());
  EXPECT_EQ(m.groups[0].copies, std::vector<std::uint32_t>(8, 0));
}

} // namespace
} // namespace di::engine
