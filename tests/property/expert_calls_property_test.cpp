// SPDX-License-Identifier: Apache-2.0
// Goal: whatever dies, moves, is late or comes twice, every row of a layer is answered exactly
// once. Method: 1000 seeds of random routing, deaths, refusals, lost answers and new placements;
// then a quiet time in which the layer must become complete.
#include "engine/core/expert_call_core.hpp"
#include "engine/moe/random_placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace di::engine {
namespace {

constexpr std::uint32_t ranks = 5, experts = 7, per_token = 3;

struct cluster {
  std::mt19937_64 random;
  std::vector<placed_rank> alive;
  std::uint64_t version = 0, next_life = 100;

  explicit cluster(std::uint64_t seed) : random{seed} {
    for (std::uint32_t r = 0; r < ranks; ++r)
      alive.push_back({rank_id{r}, incarnation{next_life++}});
  }
  std::shared_ptr<const placement> place() {
    const std::vector<expert_layers> groups{{0, 2, experts}};
    const auto redundant = static_cast<std::uint32_t>(random() % 6);
    ++version;
    auto made = placement::contiguous(groups, alive, redundant, epoch{version}, epoch{version});
    if (random() % 2) { // experts have moved
      proto::placement_published m = made->published();
      m.groups[0].expert_of_slot = random_placement(
          groups[0], static_cast<std::uint32_t>(alive.size()), m.groups[0].slots, random());
      made = placement::from(m);
    }
    return std::make_shared<const placement>(std::move(made).value());
  }
  bool is_alive(const placed_rank& r) const {
    return std::find(alive.begin(), alive.end(), r) != alive.end();
  }
};

struct flight { // a call that a holder has
  call_id id;
  placed_rank holder;
  std::vector<call_entry> entries;
};

void run_seed(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  cluster c{seed};
  expert_call_core core{rank_id{0}, {{}, std::chrono::milliseconds{1}, 2 * (1 + seed % 4)}};
  core.install(c.place());
  const auto rows = static_cast<std::uint32_t>(1 + c.random() % 6);
  std::vector<std::int32_t> routed;
  for (std::uint32_t row = 0; row < rows; ++row) {
    std::vector<std::int32_t> all(experts);
    for (std::uint32_t e = 0; e < experts; ++e)
      all[e] = static_cast<std::int32_t>(e);
    std::shuffle(all.begin(), all.end(), c.random);
    std::sort(all.begin(), all.begin() + per_token);
    routed.insert(routed.end(), all.begin(), all.begin() + per_token);
  }
  ASSERT_TRUE(core.begin({layer_id{1}, rows, per_token, routed, 1}));
  std::vector<flight> air;
  std::vector<int> answered(routed.size());
  const auto launch = [&] {
    for (const expert_call* call : core.take_unsent({})) {
      ASSERT_TRUE(c.is_alive(call->holder)) << "asked the dead";
      air.push_back({call->id, call->holder, call->entries});
    }
  };
  const auto answer = [&](const flight& f) {
    if (const auto call = core.answered(f.id, f.entries.size()))
      for (const call_entry& e : call->entries) {
        ASSERT_EQ(static_cast<std::int32_t>(e.expert), routed[e.slot]);
        ++answered[e.slot];
      }
  };
  launch();
  for (int event = 0; event < 40 && !core.complete(); ++event) {
    const std::size_t pick = air.empty() ? 0 : c.random() % air.size();
    switch (c.random() % 6) {
    case 0: // a rank dies; its answers in the air may still come
      if (c.alive.size() > 1) {
        const std::size_t victim = 1 + c.random() % (c.alive.size() - 1);
        const placed_rank dead = c.alive[victim];
        c.alive.erase(c.alive.begin() + static_cast<std::ptrdiff_t>(victim));
        core.lost(dead.rank, dead.life);
      }
      break;
    case 1: // a new placement, perhaps with somebody reborn
      if (c.alive.size() < ranks && c.random() % 2) {
        for (std::uint32_t r = 1; r < ranks; ++r)
          if (std::none_of(c.alive.begin(), c.alive.end(),
                           [r](const placed_rank& x) { return x.rank.v == r; })) {
            c.alive.push_back({rank_id{r}, incarnation{c.next_life++}});
            break;
          }
        std::sort(c.alive.begin(), c.alive.end(),
                  [](const placed_rank& a, const placed_rank& b) { return a.rank < b.rank; });
      }
      core.install(c.place());
      break;
    case 2: // moved
      if (!air.empty()) {
        proto::expert_moved m;
        m.call = air[pick].id;
        core.moved(m);
      }
      break;
    case 3: // an answer, perhaps twice
      if (!air.empty()) {
        answer(air[pick]);
        if (c.random() % 2)
          answer(air[pick]);
      }
      break;
    case 4: // an answer is lost and the call forgotten
      if (!air.empty() && c.is_alive(air[pick].holder))
        core.forgotten(air[pick].id);
      break;
    default: // one of the wrong size
      if (!air.empty()) {
        EXPECT_FALSE(core.answered(air[pick].id, air[pick].entries.size() + 1));
      }
    }
    launch();
    core.check();
  }
  for (int quiet = 0; quiet < 10 && !core.complete(); ++quiet) {
    core.install(c.place());
    launch();
    for (const flight& f : std::vector<flight>{air})
      if (c.is_alive(f.holder))
        answer(f);
    core.check();
  }
  ASSERT_TRUE(core.complete()) << core.open() << " open, " << core.parked() << " parked";
  for (const int n : answered)
    ASSERT_EQ(n, 1);
}

TEST(expert_calls, rows_go_round_the_holders_whatever_the_steps) {
  for (std::uint64_t seed = 0; seed < 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    cluster c{seed};
    const auto placed = c.place();
    expert_call_core core{rank_id{static_cast<std::uint32_t>(seed % ranks)}, {}};
    core.install(placed);
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> rows; // expert, rank
    for (int step = 0; step < 20; ++step) {
      std::vector<std::int32_t> routed; // one expert per row, some far more than others
      for (std::size_t row = 1 + c.random() % 9; row > 0; --row)
        routed.push_back(static_cast<std::int32_t>(c.random() % (1 + c.random() % experts)));
      ASSERT_TRUE(
          core.begin({layer_id{1}, static_cast<std::uint32_t>(routed.size()), 1, routed, 1}));
      for (const expert_call* call : core.take_unsent({}))
        for (const call_entry& e : call->entries)
          ++rows[{e.expert, call->holder.rank.v}];
      core.abandon();
    }
    for (std::uint32_t e = 0; e < experts; ++e) {
      const auto holders = placed->holders(layer_id{1}, e);
      if (holders.size() == ranks)
        continue; // callers serve themselves
      std::uint32_t least = ~0U, most = 0;
      for (const std::uint32_t h : holders) {
        least = std::min(least, rows[{e, h}]);
        most = std::max(most, rows[{e, h}]);
      }
      ASSERT_LE(most - least, 1U) << "expert " << e;
    }
  }
}

TEST(expert_calls, every_row_is_answered_exactly_once) {
  for (std::uint64_t seed = 0; seed < 1000 && !testing::Test::HasFailure(); ++seed)
    run_seed(seed);
}

} // namespace
} // namespace di::engine
