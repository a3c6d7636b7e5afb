// SPDX-License-Identifier: Apache-2.0
// REBALANCER: loads in, placements out, layer by layer, and never before all have loaded.
#include "engine/core/expert_shard_core.hpp"
#include "engine/core/rebalancer_core.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace di::engine {
namespace {

using test::sent;

constexpr std::uint32_t ranks = 4, layers = 3, experts = 8;
constexpr epoch first_version{(1U << 20) + 1}; // in view 1

/// A core with everybody else.
struct office {
  rebalancer_core core;
  outbox out;
  std::map<std::string, double> counters;
  std::uint64_t window = 0;

  explicit office(rebalance_policy policy, std::uint32_t redundant = 4)
      : core{options(policy, redundant)} {
    std::vector<placed_rank> who;
    for (std::uint32_t r = 0; r < ranks; ++r)
      who.push_back({rank_id{r}, incarnation{10 + r}});
    EXPECT_TRUE(core.install_view(epoch{1}, who, {}, out));
    follow();
  }
  static rebalancer_options options(rebalance_policy policy, std::uint32_t redundant) {
    rebalancer_options o;
    o.groups = {{0, layers, experts}};
    o.redundant = redundant;
    o.policy = policy;
    return o;
  }
  void take() {
    for (const any_effect& e : out.take())
      if (const auto* c = std::get_if<effect::count>(&e))
        counters[std::string{c->metric}] += c->n;
  }
  /// All install what is published.
  void follow() {
    take();
    const epoch version = core.current().version();
    const std::vector<rank_id> all = core.current().published().ranks;
    for (const rank_id r : all)
      for (const address& who : {rank_path(r), shard_path(r)}) {
        EXPECT_TRUE(core.on(proto::placement_installed{who, version, {}}, {}, out));
        core.check();
      }
  }
  void prepare(rank_id rank, epoch version, incarnation life) {
    EXPECT_TRUE(core.on(proto::placement_prepared{rank, life, version, 1}, {}, out));
    core.check();
  }
  /// A window of a rank: rows[layer][expert], the same in each bin.
  void load(std::uint32_t rank, const std::vector<std::uint32_t>& rows, std::uint32_t steps = 4) {
    proto::expert_load m;
    m.rank = rank_id{rank};
    m.life = incarnation{10 + rank};
    m.placement = core.current().version();
    m.window = ++window;
    m.steps = steps;
    m.bins = 1;
    m.groups = {{0, layers, experts}};
    pack_counts(rows, m.rows);
    EXPECT_TRUE(core.on(m, {}, out));
    core.check();
  }
};

rebalance_policy by_load() {
  rebalance_policy p;
  p.mode = rebalance_mode::automatic;
  p.window_steps = 4;
  p.interval_steps = 8;
  p.bins = 1;
  return p;
}

std::vector<std::uint32_t> uneven() {
  std::vector<std::uint32_t> rows(layers * experts, 10);
  for (std::uint32_t layer = 0; layer < layers; ++layer)
    rows[layer * experts] = rows[layer * experts + 1] = 200; // both on the first rank
  return rows;
}

TEST(rebalancer_core, reads_its_policy) {
  EXPECT_EQ(parse_rebalance("off")->mode, rebalance_mode::off);
  EXPECT_EQ(parse_rebalance("auto")->mode, rebalance_mode::automatic);
  EXPECT_EQ(parse_rebalance("forced")->mode, rebalance_mode::forced);
  EXPECT_EQ(parse_rebalance("forced:5")->interval_steps, 5U);
  for (const char* bad : {"", "on", "forced:", "forced:0", "forced:x", "forced:5s", "forcedly",
                          "forced:99999999999"}) {
    const auto p = parse_rebalance(bad);
    ASSERT_FALSE(p) << bad;
    EXPECT_EQ(p.error().code, ec::bad_config);
  }
}

TEST(rebalancer_core, moves_experts_when_load_says_so_and_then_rests) {
  office o{by_load()};
  ASSERT_TRUE(o.core.settled());
  const auto first = o.core.current().published();
  o.load(0, uneven()); // the first window under a placement may have begun before it
  EXPECT_TRUE(sent<proto::placement_proposed>(o.out).empty());
  o.load(0, uneven());
  EXPECT_TRUE(sent<proto::placement_proposed>(o.out).empty());
  o.load(0, uneven());
  auto proposed = sent<proto::placement_proposed>(o.out);
  ASSERT_EQ(proposed.size(), ranks);
  EXPECT_EQ(proposed[0].first, "/rank/0/expert_shard");
  EXPECT_EQ(o.core.current().version(), first_version) << "nobody switches yet";
  o.take();
  EXPECT_GT(o.counters["di_rebalancer_moe_lb"], 1.7);
  EXPECT_LT(o.counters["di_rebalancer_plan_moe_lb_after"],
            o.counters["di_rebalancer_plan_moe_lb_before"]);
  int epochs = 0;
  while (!o.core.settled()) {
    ASSERT_LT(++epochs, 10);
    const epoch next{o.core.current().version().v + 1};
    for (std::uint32_t r = 0; r < ranks; ++r) {
      EXPECT_TRUE(sent<proto::placement_published>(o.out).empty());
      o.prepare(rank_id{r}, next, incarnation{99}); // of another life
      o.prepare(rank_id{r}, epoch{77}, incarnation{10 + r});
      o.prepare(rank_id{r}, next, incarnation{10 + r});
    }
    EXPECT_EQ(sent<proto::placement_published>(o.out).size(), 2 * ranks);
    EXPECT_TRUE(sent<proto::placement_settled>(o.out).empty());
    o.follow();
    const auto settled = sent<proto::placement_settled>(o.out);
    ASSERT_EQ(settled.size(), ranks) << "shards may let go; the scheduler knows the ranks";
    EXPECT_EQ(settled[0].first, "/rank/0/expert_shard");
    o.take();
  }
  EXPECT_NE(o.core.current().published().groups[0].expert_of_slot, first.groups[0].expert_of_slot);
  for (int interval = 0; interval < 4; ++interval) {
    for (int w = 0; w < 3; ++w)
      o.load(0, uneven());
    EXPECT_TRUE(sent<proto::placement_proposed>(o.out).empty()) << "the same load, no new plan";
  }
  o.take();
  EXPECT_LT(o.counters["di_rebalancer_moe_lb"], 1.3);
  EXPECT_EQ(o.counters["di_rebalancer_plans_total"], 1);
}

TEST(rebalancer_core, switches_some_layers_per_epoch) {
  rebalance_policy policy = by_load();
  policy.epoch_moves = 1;
  office o{policy};
  for (int w = 0; w < 3; ++w)
    o.load(0, uneven());
  std::uint32_t epochs = 0;
  while (!o.core.settled()) {
    ASSERT_LT(++epochs, 10U);
    const auto before = o.core.current().published();
    for (std::uint32_t r = 0; r < ranks; ++r)
      o.prepare(rank_id{r}, epoch{before.placement.v + 1}, incarnation{10 + r});
    const placement old = placement::from(before).value();
    std::uint32_t changed = 0;
    for (std::uint32_t layer = 0; layer < layers; ++layer)
      for (std::uint32_t r = 0; r < ranks; ++r) {
        const auto a = old.held(r, layer_id{layer}), b = o.core.current().held(r, layer_id{layer});
        if (!std::equal(a.begin(), a.end(), b.begin())) {
          ++changed;
          break;
        }
      }
    EXPECT_EQ(changed, 1U);
    o.follow();
    o.take();
  }
  EXPECT_EQ(epochs, layers);
}

TEST(rebalancer_core, begins_above_one_bound_and_goes_on_below_it_down_to_another) {
  rebalance_policy p = by_load();
  p.moves_max = 2; // one swap of a layer
  p.gain_min = 0;
  p.end_below = 1.1;
  const auto run = [](office& o) {
    for (int interval = 0; interval < 24; ++interval) {
      o.load(0, uneven());
      while (!o.core.settled()) {
        const epoch next{o.core.current().version().v + 1};
        for (std::uint32_t r = 0; r < ranks; ++r)
          o.prepare(rank_id{r}, next, incarnation{10 + r});
        o.follow();
      }
    }
    o.take();
    return o.counters["di_rebalancer_plans_total"];
  };
  p.begin_above = 1.8; // all is at 1.783
  office calm{p};
  EXPECT_EQ(run(calm), 0);
  p.begin_above = 1.7; // 1.78, 1.54, 1.29, 1.04
  office moved{p};
  EXPECT_EQ(run(moved), 3);
}

TEST(rebalancer_core, repeats_less_and_less_often) {
  office o{by_load()};
  o.load(0, uneven());
  o.load(0, uneven());
  o.load(0, uneven());
  ASSERT_FALSE(o.core.settled());
  duration before{};
  const timer resend{1, first_version.v + 1};
  for (int i = 0; i < 8; ++i) {
    duration wait{};
    for (const any_effect& e : o.out.take())
      if (const auto* armed = std::get_if<effect::arm>(&e))
        wait = armed->after;
    EXPECT_EQ(wait, i == 0 ? duration{std::chrono::milliseconds{250}}
                           : std::min<duration>(2 * before, std::chrono::seconds{8}));
    before = wait;
    ASSERT_TRUE(o.core.on_due(resend, {}, o.out));
  }
}

TEST(rebalancer_core, leaves_even_loads_alone) {
  office o{by_load(), 0};
  for (int w = 0; w < 12; ++w)
    o.load(static_cast<std::uint32_t>(w) % ranks, std::vector<std::uint32_t>(layers * experts, 50));
  EXPECT_TRUE(o.core.settled());
  o.take();
  EXPECT_EQ(o.counters["di_rebalancer_plans_total"], 0);
  EXPECT_NEAR(o.counters["di_rebalancer_moe_lb"], 1, 1e-6);
}

TEST(rebalancer_core, shows_uneven_loads_and_moves_nothing_when_it_only_observes) {
  rebalance_policy policy = by_load();
  policy.begin_above = parse_rebalance("observe")->begin_above;
  office o{policy};
  for (int w = 0; w < 12; ++w)
    o.load(0, uneven());
  EXPECT_TRUE(o.core.settled() && o.core.on(proto::get_heat{})->counted);
  o.take();
  EXPECT_EQ(o.counters["di_rebalancer_plans_total"], 0);
  EXPECT_GT(o.counters["di_rebalancer_moe_lb"], 1.7);
}

TEST(rebalancer_core, places_at_random_every_few_steps_when_forced) {
  rebalance_policy policy = parse_rebalance("forced:4").value();
  std::vector<proto::placement_group> seen[2];
  for (auto& run : seen) {
    office o{policy};
    for (int turn = 0; turn < 5; ++turn) {
      o.load(1, uneven());
      while (!o.core.settled()) {
        const epoch next{o.core.current().version().v + 1};
        for (std::uint32_t r = 0; r < ranks; ++r)
          o.prepare(rank_id{r}, next, incarnation{10 + r});
        o.follow();
        o.take();
      }
      run.push_back(o.core.current().published().groups[0]);
      EXPECT_TRUE(placement::from(o.core.current().published()));
    }
    for (std::size_t i = 1; i < run.size(); ++i)
      EXPECT_NE(run[i].expert_of_slot, run[i - 1].expert_of_slot);
  }
  for (std::size_t i = 0; i < seen[0].size(); ++i)
    EXPECT_EQ(seen[0][i].expert_of_slot, seen[1][i].expert_of_slot) << "not the same again";
}

TEST(rebalancer_core, drops_a_plan_when_a_view_comes) {
  office o{by_load()};
  for (int w = 0; w < 3; ++w)
    o.load(0, uneven());
  ASSERT_FALSE(o.core.settled());
  o.out.take();
  const std::vector<placed_rank> fewer{{rank_id{1}, incarnation{11}},
                                       {rank_id{2}, incarnation{12}}};
  ASSERT_TRUE(o.core.install_view(epoch{2}, fewer, {}, o.out));
  const auto published = sent<proto::placement_published>(o.out);
  ASSERT_EQ(published.size(), 4U);
  const epoch proposed{first_version.v + 1};
  EXPECT_GT(published[0].second.placement, proposed) << "newer than what was proposed";
  o.prepare(rank_id{1}, proposed, incarnation{11}); // late
  EXPECT_EQ(o.core.current().ranks(), 2U);
  o.follow();
  const auto settled = sent<proto::placement_settled>(o.out);
  ASSERT_EQ(settled.size(), 4U); // scheduler and gateway too: other ranks
  EXPECT_EQ(settled[0].first, "/control/scheduler");
}

std::vector<placed_rank> lives(std::initializer_list<std::uint32_t> numbers) {
  std::vector<placed_rank> all;
  for (const std::uint32_t r : numbers)
    all.push_back({rank_id{r}, incarnation{10 + r}});
  return all;
}

/// Brings every plan in flight to its end.
void finish_plans(office& o) {
  for (int turn = 0; !o.core.settled(); ++turn) {
    ASSERT_LT(turn, 50);
    for (const auto& [who, m] : sent<proto::placement_proposed>(o.out))
      for (std::size_t i = 0; i < m.next.ranks.size(); ++i)
        if (who == shard_path(m.next.ranks[i]))
          o.prepare(m.next.ranks[i], m.next.placement, m.next.lives[i]);
    o.follow();
    o.core.check();
  }
}

TEST(rebalancer_core, publishes_a_repaired_placement_at_once_and_levels_it_in_the_background) {
  office o{{}, 0}; // rebalancing is off
  const auto before = o.core.current().published();
  o.out.take();
  ASSERT_TRUE(o.core.install_view(epoch{2}, lives({0, 1, 3}), {}, o.out));
  EXPECT_EQ(sent<proto::placement_published>(o.out).size(), 6U);
  EXPECT_EQ(o.core.current().version(), epoch{(2U << 20) + 1});
  const auto& shrunk = o.core.current();
  for (const std::uint32_t r : {0U, 1U, 3U}) {
    const auto now = shrunk.held(*shrunk.index_of(rank_id{r}), layer_id{0});
    EXPECT_EQ(now[0], before.groups[0].expert_of_slot[2 * r]);
    EXPECT_EQ(now[1], before.groups[0].expert_of_slot[2 * r + 1]);
  }
  finish_plans(o);
  EXPECT_EQ(o.core.current().published().groups[0].slots, 3U);

  o.out.take();
  std::vector<placed_rank> back = lives({0, 1, 2, 3});
  back[2].life = incarnation{77};
  ASSERT_TRUE(o.core.install_view(epoch{3}, back, {}, o.out));
  for (const std::uint32_t e : o.core.current().held(2, layer_id{0}))
    EXPECT_EQ(e, placement::empty_slot) << "a newcomer begins empty";
  const epoch joined = o.core.current().version();
  finish_plans(o);
  EXPECT_GT(o.core.current().version(), joined);
  const proto::placement_group& group = o.core.current().published().groups[0];
  EXPECT_EQ(group.slots, 2U) << "what only three ranks needed is given back";
  EXPECT_EQ(
      std::count(group.expert_of_slot.begin(), group.expert_of_slot.end(), placement::empty_slot),
      0);
  EXPECT_EQ(o.core.current().rank_at(2).life, incarnation{77});
}

TEST(rebalancer_core, keeps_the_experts_of_a_rank_that_is_replaced_in_its_place) {
  office o{{}, 4};
  const auto before = o.core.current().published().groups;
  std::vector<placed_rank> next = lives({0, 1, 2, 3});
  next[1].life = incarnation{99};
  ASSERT_TRUE(o.core.install_view(epoch{2}, next, {}, o.out));
  EXPECT_EQ(o.core.current().published().groups[0].expert_of_slot, before[0].expert_of_slot);
  o.follow();
  EXPECT_TRUE(o.core.settled()) << "nothing is to be moved";
}

TEST(rebalancer_core, publishes_nothing_below_the_smallest_group_and_goes_on_from_what_was) {
  rebalancer_options options = office::options({}, 0);
  options.ranks_min = 3;
  rebalancer_core core{options};
  outbox out;
  ASSERT_TRUE(core.install_view(epoch{1}, lives({0, 1, 2}), {}, out));
  const auto first = core.current().published();
  out.take();
  ASSERT_TRUE(core.install_view(epoch{2}, lives({0, 2}), {}, out));
  EXPECT_TRUE(sent<proto::placement_published>(out).empty());
  EXPECT_FALSE(core.settled());
  core.check();
  ASSERT_TRUE(core.install_view(epoch{3}, {}, {}, out)); // nobody is left
  core.check();
  ASSERT_TRUE(core.on_due({1, core.current().version().v}, {}, out));
  out.take();
  std::vector<placed_rank> next = lives({0, 2, 3});
  ASSERT_TRUE(core.install_view(epoch{4}, next, {}, out));
  EXPECT_EQ(sent<proto::placement_published>(out).size(), 6U);
  const auto now = core.current().held(0, layer_id{0});
  EXPECT_TRUE(std::equal(now.begin(), now.end(), first.groups[0].expert_of_slot.begin()));
}

TEST(rebalancer_core, makes_versions_above_those_of_another_life_of_control) {
  office o{{}, 0};
  const epoch seen{(9U << 20) + 5};
  ASSERT_TRUE(o.core.on(proto::placement_installed{"/rank/1/rank", seen, {}}, {}, o.out));
  EXPECT_EQ(o.core.current().version(), epoch{seen.v + 1});
  EXPECT_EQ(sent<proto::placement_published>(o.out).size(), 2 * ranks);
  o.follow();
  EXPECT_TRUE(o.core.settled());
  ASSERT_TRUE(o.core.install_view(epoch{2}, lives({0, 1, 2}), {}, o.out));
  EXPECT_GT(o.core.current().version(), epoch{seen.v + 1});
}

TEST(rebalancer_core, asks_again_who_has_not_loaded) {
  office o{by_load()};
  for (int w = 0; w < 3; ++w)
    o.load(0, uneven());
  const epoch proposed{first_version.v + 1};
  o.prepare(rank_id{0}, proposed, incarnation{10});
  o.out.take();
  ASSERT_TRUE(o.core.on_due({1, proposed.v}, {}, o.out));
  const auto again = sent<proto::placement_proposed>(o.out);
  ASSERT_EQ(again.size(), ranks - 1);
  EXPECT_EQ(again[0].first, "/rank/1/expert_shard");
}

TEST(rebalancer_core, refuses_loads_that_make_no_sense) {
  rebalance_policy patient = by_load();
  patient.interval_steps = 1'000'000;
  office o{patient};
  proto::expert_load m;
  m.rank = rank_id{0};
  m.life = incarnation{10};
  m.placement = o.core.current().version();
  m.steps = 4;
  m.bins = 1;
  m.groups = {{0, layers, experts}};
  pack_counts(uneven(), m.rows);
  const auto refused = [&](const proto::expert_load& bad) {
    o.counters.clear();
    EXPECT_TRUE(o.core.on(m, {}, o.out)); // so that the next is whole
    o.take();
    o.counters.clear();
    EXPECT_TRUE(o.core.on(bad, {}, o.out));
    o.take();
    return o.counters["di_rebalancer_loads_refused_total"] == 1;
  };
  auto bad = m;
  bad.rows.pop_back();
  EXPECT_TRUE(refused(bad));
  bad = m;
  bad.rows += '\1';
  EXPECT_TRUE(refused(bad));
  bad = m;
  bad.bins = 0;
  EXPECT_TRUE(refused(bad));
  bad = m;
  bad.bins = 5;
  EXPECT_TRUE(refused(bad));
  bad = m;
  bad.groups[0].experts = 9;
  EXPECT_TRUE(refused(bad));
  bad = m;
  bad.groups[0].first_layer = 1;
  EXPECT_TRUE(refused(bad));
}

} // namespace
} // namespace di::engine
