// SPDX-License-Identifier: Apache-2.0
// Slow ranks: who finds whom slow, what SCHEDULER makes of it, and which experts move.
#include "engine/core/expert_shard_core.hpp" // rank_path
#include "engine/core/holder_speeds.hpp"
#include "engine/core/rebalancer_core.hpp"
#include "engine/core/scheduler_core.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace di::engine {
namespace {

using std::chrono::microseconds;
using test::only;
using test::sent;

std::vector<placed_rank> some_ranks(std::uint32_t n) {
  std::vector<placed_rank> all;
  for (std::uint32_t r = 0; r < n; ++r)
    all.push_back({rank_id{r}, incarnation{10 + r}});
  return all;
}

/// Calls to ranks 1, 2 and 3 in turn. @return whether the list changed
bool call(holder_speeds& speeds, std::int64_t slow_us, int rounds) {
  bool changed = false;
  for (int i = 0; i < rounds; ++i) {
    changed = speeds.observe({rank_id{1}, incarnation{11}}, microseconds{100 + i % 7}) || changed;
    changed = speeds.observe({rank_id{2}, incarnation{12}}, microseconds{slow_us}) || changed;
    changed = speeds.observe({rank_id{3}, incarnation{13}}, microseconds{120 - i % 5}) || changed;
  }
  return changed;
}

TEST(holder_speeds, finds_a_rank_slow_that_takes_much_longer_than_the_median_for_long) {
  holder_speeds speeds;
  EXPECT_FALSE(call(speeds, 200, 400)) << "twice as long is no reason";
  EXPECT_FALSE(call(speeds, 20'000, 0));
  EXPECT_FALSE(speeds.observe({rank_id{2}, incarnation{12}}, microseconds{2'000}));
  EXPECT_FALSE(call(speeds, 200, 100)) << "one late answer is none either";
  EXPECT_TRUE(call(speeds, 1'000, 400));
  ASSERT_EQ(speeds.slow().size(), 1U);
  EXPECT_EQ(speeds.slow()[0].who, (placed_rank{rank_id{2}, incarnation{12}}));
  EXPECT_GT(speeds.slow()[0].factor, 4) << "told anew when it doubles";
  EXPECT_FALSE(call(speeds, 1'000, 400)) << "nothing new";
  EXPECT_FALSE(call(speeds, 230, 70)) << "still slow until it is below the lower bound";
  EXPECT_TRUE(call(speeds, 130, 800));
  EXPECT_TRUE(speeds.slow().empty());
}

TEST(holder_speeds, judges_nobody_among_two_and_forgets_who_left) {
  holder_speeds speeds;
  for (int i = 0; i < 500; ++i) {
    EXPECT_FALSE(speeds.observe({rank_id{1}, incarnation{11}}, microseconds{100}));
    EXPECT_FALSE(speeds.observe({rank_id{2}, incarnation{12}}, microseconds{9'000}));
  }
  EXPECT_TRUE(call(speeds, 9'000, 400));
  EXPECT_TRUE(speeds.keep_only(
      std::vector<placed_rank>{{rank_id{1}, incarnation{11}}, {rank_id{3}, incarnation{13}}}));
  EXPECT_TRUE(speeds.slow().empty());
  EXPECT_FALSE(speeds.keep_only({}));
}

proto::rank_load load(std::uint32_t rank, std::uint64_t report, std::vector<rank_id> slow) {
  proto::rank_load m;
  m.rank = rank_id{rank};
  m.life = incarnation{10 + rank};
  m.report = report;
  m.slow_percent.assign(slow.size(), 400);
  m.slow = std::move(slow);
  return m;
}

TEST(scheduler_core, gives_less_to_a_rank_that_most_others_find_slow) {
  scheduler_core core{{}};
  outbox out;
  core.install_view(epoch{1}, some_ranks(4), {}, out);
  ASSERT_TRUE(core.on(load(0, 1, {rank_id{2}}), {}, out));
  ASSERT_TRUE(core.on(load(2, 1, {rank_id{2}, rank_id{0}}), {}, out)); // not about itself
  EXPECT_TRUE(sent<proto::ranks_slow>(out).empty()) << "one of three";
  ASSERT_TRUE(core.on(load(3, 1, {rank_id{2}}), {}, out));
  const auto told = sent<proto::ranks_slow>(out);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].first, "/control/rebalancer");
  EXPECT_EQ(told[0].second.ranks, std::vector<rank_id>{rank_id{2}});
  EXPECT_EQ(told[0].second.lives, std::vector<incarnation>{incarnation{12}});
  EXPECT_EQ(told[0].second.percent, std::vector<std::uint32_t>{400});
  out.take();
  std::map<address, int> given;
  for (std::uint64_t id = 1; id <= 26; ++id) {
    proto::admit_request m;
    m.spec.request = request_id{id};
    m.spec.prompt = {1, 2, 3};
    m.attempt = 1;
    ASSERT_TRUE(core.on(m, {}, out));
  }
  for (const auto& [to, m] : sent<proto::assign_request>(out))
    ++given[to];
  EXPECT_LE(given["/rank/2/rank"], 3);
  EXPECT_GE(given["/rank/2/rank"], 1) << "it is a member and serves";
  EXPECT_GE(given["/rank/0/rank"], 7);
  out.take();
  ASSERT_TRUE(core.on(load(3, 2, {}), {}, out));
  ASSERT_EQ(sent<proto::ranks_slow>(out).size(), 1U);
  EXPECT_TRUE(only<proto::ranks_slow>(out).ranks.empty());
  core.check();
}

TEST(rebalancer_core, moves_experts_off_a_slow_rank_and_back_again) {
  rebalancer_options options;
  options.groups = {{0, 2, 8}};
  options.ranks_min = 2; // four slots a rank are reserved
  rebalancer_core core{options};
  outbox out;
  const auto finish = [&] {
    for (int turn = 0; turn < 20; ++turn) {
      for (const auto& [who, m] : sent<proto::placement_proposed>(out))
        for (std::size_t i = 0; i < m.next.ranks.size(); ++i)
          if (who == shard_path(m.next.ranks[i])) {
            const proto::placement_prepared done{m.next.ranks[i], m.next.lives[i], m.next.placement,
                                                 1};
            ASSERT_TRUE(core.on(done, {}, out));
          }
      out.take();
      for (std::uint32_t r = 0; r < 4; ++r)
        for (const address& who : {rank_path(rank_id{r}), shard_path(rank_id{r})})
          ASSERT_TRUE(
              core.on(proto::placement_installed{who, core.current().version(), {}}, {}, out));
      core.check();
      if (core.settled() && sent<proto::placement_proposed>(out).empty())
        return;
    }
    FAIL() << "never settled";
  };
  const auto held_by = [&](std::size_t rank) {
    const auto held = core.current().held(rank, layer_id{1});
    return held.size()
           - static_cast<std::size_t>(std::count(held.begin(), held.end(), placement::empty_slot));
  };
  ASSERT_TRUE(core.install_view(epoch{1}, some_ranks(4), {}, out));
  ASSERT_TRUE(core.on(proto::ranks_slow{{rank_id{1}}, {incarnation{11}}, {1000}}, {}, out));
  finish();
  EXPECT_EQ(held_by(1), 0U);
  EXPECT_EQ(held_by(0), 3U);
  out.take();
  ASSERT_TRUE(core.on(proto::ranks_slow{{rank_id{1}}, {incarnation{99}}, {1000}}, {}, out));
  finish(); // another life is meant: this one is as fast as others
  EXPECT_EQ(held_by(1), 2U);
  EXPECT_EQ(core.current().published().groups[0].slots, 2U);
}

} // namespace
} // namespace di::engine
