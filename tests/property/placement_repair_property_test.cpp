// SPDX-License-Identifier: Apache-2.0
// Goal: whatever lives leave and come, every expert is held, nobody who stays moves anything, slots
// are bounded, experts are spread evenly, and every process would compute the same. Method: seeds
// of random groups that lose and gain ranks many times over.
#include "engine/moe/placement_repair.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace di::engine {
namespace {

constexpr std::uint32_t none = placement::empty_slot;

struct world {
  std::mt19937_64 random;
  std::vector<expert_layers> groups;
  std::uint32_t redundant = 0, ranks_max = 0;
  std::vector<std::vector<float>> rows; ///< [groups]
  std::vector<load_view> loads;         ///< [groups]; empty: unknown
  std::vector<placed_rank> ranks;
  std::uint64_t next_life = 100;

  explicit world(std::uint64_t seed) : random{seed} {
    ranks_max = static_cast<std::uint32_t>(1 + random() % (seed % 8 == 0 ? 64 : 9));
    redundant = static_cast<std::uint32_t>(random() % 3 == 0 ? random() % 12 : 0);
    groups.push_back({0, static_cast<std::uint32_t>(1 + random() % 4),
                      static_cast<std::uint32_t>(1 + random() % 40)});
    if (random() % 2)
      groups.push_back({groups[0].layers, 1, static_cast<std::uint32_t>(1 + random() % 6)});
    for (std::uint32_t r = 0; r < ranks_max; ++r)
      ranks.push_back({rank_id{r}, incarnation{next_life++}});
    if (random() % 2)
      draw_loads();
  }
  void draw_loads() {
    loads.clear();
    rows.clear();
    for (const expert_layers& g : groups) {
      auto& all = rows.emplace_back(std::size_t{2} * g.layers * g.experts);
      for (float& r : all)
        r = static_cast<float>(random() % 1000);
    }
    for (std::size_t g = 0; g < groups.size(); ++g)
      loads.push_back({2, groups[g].layers, groups[g].experts, rows[g]});
  }
  std::vector<std::uint32_t> most(std::size_t g, std::span<const double> slowness) const {
    return slots_by_speed(groups[g].experts, redundant, static_cast<std::uint32_t>(ranks.size()),
                          slowness, groups[g].experts);
  }
  /// Some leave, some come, some are replaced in their place; at least one stays or comes.
  void change() {
    std::vector<placed_rank> next;
    const std::uint64_t habit = random() % 4;
    for (std::uint32_t r = 0; r < ranks_max; ++r) {
      const auto at = std::find_if(ranks.begin(), ranks.end(),
                                   [r](const placed_rank& p) { return p.rank == rank_id{r}; });
      const std::uint64_t dice = random() % 10;
      if (at == ranks.end() ? dice < (habit == 1 ? 0 : 4) : dice >= (habit == 2 ? 10 : 8))
        next.push_back({rank_id{r}, incarnation{next_life++}}); // comes, or begins again
      else if (at != ranks.end() && dice >= (habit == 0 ? 4 : 1))
        next.push_back(*at);
    }
    if (next.empty())
      next.push_back(
          {rank_id{static_cast<std::uint32_t>(random() % ranks_max)}, incarnation{next_life++}});
    ranks = std::move(next);
  }
};

std::size_t used(std::span<const std::uint32_t> slots) {
  return slots.size() - static_cast<std::size_t>(std::count(slots.begin(), slots.end(), none));
}

bool random_bit(std::uint64_t a, std::uint64_t b) {
  return std::mt19937_64{a * 1000 + b}() % 2 == 0;
}

/// What a repair may not do.
void expect_repaired(const placement& old, const placement& now, const world& w) {
  for (const expert_layers& g : w.groups)
    for (std::uint32_t l = g.first_layer; l < g.first_layer + g.layers; ++l) {
      const layer_id layer{l};
      std::size_t fullest = 0, fullest_before = 0, copies = 0;
      std::uint32_t changed = 0, lost = 0;
      for (std::size_t r = 0; r < now.ranks(); ++r) {
        fullest = std::max(fullest, used(now.held(r, layer)));
        copies += used(now.held(r, layer));
        const auto before = old.index_of(now.rank_at(r).rank);
        for (std::size_t s = 0; before && s < old.held(*before, layer).size(); ++s) {
          const std::uint32_t was = old.held(*before, layer)[s], is = now.held(r, layer)[s];
          if (was == none || was == is)
            continue;
          ++changed; // only a copy may make room
          ASSERT_GE(now.holders(layer, was).size(), 1U);
        }
        if (before)
          fullest_before = std::max(fullest_before, used(old.held(*before, layer)));
      }
      for (std::uint32_t e = 0; e < g.experts; ++e) {
        const auto who = old.holders(layer, e);
        lost += std::none_of(who.begin(), who.end(), [&](std::uint32_t holder) {
          return now.index_of(old.rank_at(holder).rank).has_value();
        });
      }
      ASSERT_LE(changed, lost);
      const std::uint32_t slots =
          slots_per_rank(g.experts, w.redundant, static_cast<std::uint32_t>(now.ranks()));
      ASSERT_LE(now.held(0, layer).size(), std::max<std::size_t>(slots, old.held(0, layer).size()));
      if (changed > 0) { // then there was no free slot anywhere
        ASSERT_EQ(copies, now.held(0, layer).size() * now.ranks());
      } else if (w.loads.empty() && lost > 0 && copies == g.experts) {
        const std::size_t even = (copies + now.ranks() - 1) / now.ranks();
        ASSERT_LE(fullest, std::max(fullest_before, even)) << "lost experts go where few are";
      }
    }
}

void expect_level(const placement& p, std::size_t group, const std::vector<std::uint32_t>& goal,
                  const world& w) {
  const proto::placement_group& g = p.published().groups[group];
  const std::uint32_t wanted =
      slots_per_rank(g.experts, w.redundant, static_cast<std::uint32_t>(p.ranks()));
  ASSERT_EQ(goal.size(), std::size_t{g.layers} * p.ranks() * g.slots);
  const std::size_t layer_size = p.ranks() * g.slots;
  for (std::size_t layer = 0; layer < goal.size(); layer += layer_size) {
    const std::size_t all = used(std::span{goal}.subspan(layer, layer_size));
    ASSERT_GE(all, std::min<std::size_t>(g.experts + w.redundant, wanted * p.ranks()));
    std::size_t most = 0, fewest = wanted;
    for (std::size_t row = layer; row < layer + layer_size; row += g.slots) {
      const auto slots = std::span{goal}.subspan(row, g.slots);
      ASSERT_LE(used(slots), wanted);
      ASSERT_EQ(used(slots.first(wanted)), used(slots)) << "in the first slots";
      most = std::max(most, used(slots));
      fewest = std::min(fewest, used(slots));
    }
    if (all == g.experts) {
      ASSERT_LE(most, fewest + 1);
    }
  }
}

TEST(placement_repair, keeps_every_expert_held_and_moves_nothing_needlessly) {
  std::uint64_t views = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    world w{seed};
    placement now =
        placement::contiguous(w.groups, w.ranks, w.redundant, epoch{1}, epoch{1}).value();
    for (std::uint64_t view = 2; view < 8; ++view, ++views) {
      w.change();
      if (!w.loads.empty() && seed % 3 == 0)
        w.draw_loads();
      const repair_wish wish{w.ranks, epoch{view << 20}, epoch{view}, w.redundant};
      const auto made = repaired(now, wish, w.loads);
      ASSERT_TRUE(made) << made.error().what; // from() has looked: every expert has a holder
      const placement again = repaired(now, wish, w.loads).value();
      for (std::size_t g = 0; g < w.groups.size(); ++g)
        ASSERT_EQ(again.published().groups[g].expert_of_slot,
                  made->published().groups[g].expert_of_slot);
      ASSERT_EQ(made->version(), wish.version);
      ASSERT_NO_FATAL_FAILURE(expect_repaired(now, *made, w));
      now = *made;
      if (random_bit(seed, view))
        continue; // the next view comes before it is level
      proto::placement_published m = now.published();
      for (std::size_t g = 0; g < w.groups.size(); ++g) {
        const load_view load = w.loads.empty() ? load_view{} : w.loads[g];
        const auto most = w.most(g, {});
        const auto goal = levelled(now, g, w.redundant, most, load);
        ASSERT_EQ(levelled(now, g, w.redundant, most, load), goal);
        ASSERT_NO_FATAL_FAILURE(expect_level(now, g, goal, w));
        m.groups[g].expert_of_slot = goal;
        narrow(m.groups[g], slots_per_rank(m.groups[g].experts, w.redundant,
                                           static_cast<std::uint32_t>(w.ranks.size())));
      }
      m.placement = epoch{now.version().v + 1};
      const auto level = placement::from(m);
      ASSERT_TRUE(level) << level.error().what;
      now = *level;
      for (std::size_t g = 0; g < w.groups.size(); ++g) {
        const load_view load = w.loads.empty() ? load_view{} : w.loads[g];
        ASSERT_EQ(levelled(now, g, w.redundant, w.most(g, {}), load),
                  now.published().groups[g].expert_of_slot)
            << "what is level stays";
      }
    }
  }
  EXPECT_EQ(views, 3600U);
}

TEST(placement_repair, takes_experts_from_slow_ranks_as_far_as_others_have_room) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    world w{seed};
    const placement now =
        placement::contiguous(w.groups, w.ranks, w.redundant, epoch{1}, epoch{1}).value();
    std::vector<double> slowness;
    for (std::size_t r = 0; r < w.ranks.size(); ++r)
      slowness.push_back(w.random() % 3 == 0 ? 2.0 + static_cast<double>(w.random() % 9) : 1.0);
    proto::placement_published m = now.published();
    std::vector<std::vector<std::uint32_t>> most;
    for (std::size_t g = 0; g < w.groups.size(); ++g) {
      most.push_back(w.most(g, slowness));
      widen(m.groups[g], *std::max_element(most[g].begin(), most[g].end()));
    }
    const placement wider = placement::from(m).value();
    for (std::size_t g = 0; g < w.groups.size(); ++g) {
      const std::uint32_t even = slots_per_rank(w.groups[g].experts, w.redundant,
                                                static_cast<std::uint32_t>(w.ranks.size()));
      const auto goal = levelled(wider, g, w.redundant, most[g], {});
      m.groups[g].expert_of_slot = goal;
      const std::size_t slots = m.groups[g].slots;
      for (std::size_t row = 0; row < goal.size(); row += slots) {
        const std::size_t rank = row / slots % w.ranks.size();
        ASSERT_LE(used(std::span{goal}.subspan(row, slots)), most[g][rank]);
        if (slowness[rank] > 1 && std::count(slowness.begin(), slowness.end(), 1.0) > 0) {
          ASSERT_LE(most[g][rank], even);
          if (w.groups[g].experts > 2 * w.ranks.size()
              && std::count(slowness.begin(), slowness.end(), 1.0) * 2
                     > static_cast<std::ptrdiff_t>(w.ranks.size())) {
            ASSERT_LT(most[g][rank], even) << "there is room elsewhere";
          }
        }
      }
    }
    ASSERT_TRUE(placement::from(m)) << "every expert still has a holder";
  }
}

TEST(placement_repair, keeps_a_slow_ranks_experts_if_nobody_has_memory_for_them) {
  const std::vector<double> slowness{1, 1, 10, 1};
  EXPECT_EQ(slots_by_speed(8, 0, 4, slowness, 2), (std::vector<std::uint32_t>{2, 2, 2, 2}));
  EXPECT_EQ(slots_by_speed(8, 0, 4, slowness, 3), (std::vector<std::uint32_t>{3, 3, 0, 3}));
  EXPECT_EQ(slots_by_speed(8, 0, 4, {}, 3), (std::vector<std::uint32_t>{2, 2, 2, 2}));
  const std::vector<double> all{3, 3, 3, 3};
  EXPECT_EQ(slots_by_speed(8, 0, 4, all, 3), (std::vector<std::uint32_t>{2, 2, 2, 2}));
}

TEST(placement_repair, gives_lost_experts_to_those_with_the_fewest_rows) {
  const std::vector<expert_layers> groups{{0, 1, 6}};
  const std::vector<placed_rank> three{
      {rank_id{0}, incarnation{1}}, {rank_id{1}, incarnation{2}}, {rank_id{2}, incarnation{3}}};
  const placement old = placement::contiguous(groups, three, 0, epoch{1}, epoch{1}).value();
  const std::vector<float> rows{500, 400, 10, 10, 300, 200};
  const std::vector<load_view> loads{{1, 1, 6, rows}};
  const std::vector<placed_rank> two{three[0], three[1]};
  const placement now = repaired(old, {two, epoch{2}, epoch{2}, 0}, loads).value();
  const auto first = now.held(0, layer_id{0}), second = now.held(1, layer_id{0});
  EXPECT_EQ((std::vector<std::uint32_t>{first.begin(), first.end()}),
            (std::vector<std::uint32_t>{0, 1, 5}))
      << "rank 1 has the 300 already and no slot more";
  EXPECT_EQ((std::vector<std::uint32_t>{second.begin(), second.end()}),
            (std::vector<std::uint32_t>{2, 3, 4}));
}

TEST(placement_repair, refuses_a_group_of_nobody) {
  const std::vector<expert_layers> groups{{0, 1, 6}};
  const std::vector<placed_rank> one{{rank_id{0}, incarnation{1}}};
  const placement old = placement::contiguous(groups, one, 0, epoch{1}, epoch{1}).value();
  EXPECT_EQ(repaired(old, {{}, epoch{2}, epoch{2}, 0}).error().code, ec::bad_argument);
}

} // namespace
} // namespace di::engine
