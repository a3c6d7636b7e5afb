// SPDX-License-Identifier: Apache-2.0
// KEEPER and MEMBERSHIP against random worlds of deaths, hangs, slow and broken joiners, repeated
// and stale facts, orders, a silent journal and a control process that starts again. The world
// checks on every view: epochs rise, each view changes something, no life that left comes back,
// never fewer than the minimum. The cores check themselves after every handler.
#include "tests/support/keeper_world.hpp"

namespace di::test {
namespace {

using engine::kept_state;
using engine::on_loss;

struct counts {
  std::size_t views = 0, joins = 0, deaths = 0, failed = 0;
};

class storm {
public:
  explicit storm(std::uint64_t seed, on_loss loss) : random_{seed * 7919} {
    keeper_world_options o;
    o.seed = seed;
    o.loss = loss;
    o.ranks = static_cast<std::uint32_t>(1 + random_() % 8);
    o.members_min = static_cast<std::uint32_t>(1 + random_() % o.ranks);
    o.with_journal = random_() % 4 != 0;
    o.load_time = std::chrono::milliseconds{1 + random_() % 3000};
    o.more = [this](engine::keeper_options& k) {
      k.quarantine = std::chrono::seconds{random_() % 3 * 20};
      k.restart_window = std::chrono::seconds{30 + random_() % 60};
      k.join_timeout = 10s;
      k.drain_timeout = 3s;
    };
    world.emplace(std::move(o));
    world->duplicates = random_() % 2 == 0;
  }

  void run() {
    for (int i = 0; i < 60 && !world->failed; ++i) {
      strike();
      world->run_for(
          std::chrono::milliseconds{random_() % 4 == 0 ? random_() % 5000 : random_() % 50});
      if (random_() % 16 == 0 && world->o_.with_journal && world->views.size() > 1)
        world->restart_control();
    }
    heal();
  }

  std::optional<keeper_world> world;
  counts seen;

private:
  void strike() {
    auto& w = *world;
    const auto r = static_cast<std::uint32_t>(random_() % w.o_.ranks);
    const rank_id rank{r};
    switch (random_() % 12) {
    case 0:
    case 1:
      ++seen.deaths;
      return w.kill(r);
    case 2:
      if (w.processes[r].alive)
        w.stuck(r);
      return;
    case 3: // facts about lives of long ago
      w.post("/control/membership", proto::member_lost{rank, incarnation{1}, "long ago"});
      return w.post("/control/keeper",
                    proto::rank_exited{rank, {}, incarnation{1}, 0, 9, "long ago"});
    case 4:
      w.broken = {r};
      return;
    case 5:
      w.slow = {r};
      return;
    case 6:
      w.broken = w.slow = w.unready = {};
      return;
    case 7:
      w.unready = {static_cast<std::uint32_t>(random_() % 2)};
      return;
    case 8:
      w.journal_answers = random_() % 4 != 0;
      return;
    case 9:
      w.processes[r].busy = random_() % 2 == 0;
      return w.ask(proto::drain_member{rank});
    case 10:
      return random_() % 2 == 0 ? w.ask(proto::join_member{rank})
                                : w.ask(proto::scale_group{1 + r});
    default:
      if (random_() % 4 == 0)
        w.ask(proto::upgrade_group{});
    }
  }

  /// Nothing breaks any more: all that is wanted comes back, orders end, nothing is left over.
  void heal() {
    auto& w = *world;
    if (w.failed)
      return void(++seen.failed);
    w.broken = w.slow = w.unready = {};
    w.journal_answers = true;
    for (auto& [r, p] : w.processes)
      p.busy = false;
    w.run_for(20min);
    if (w.failed)
      return void(++seen.failed);
    EXPECT_EQ(state().order, "") << "at least " << w.o_.members_min << " members of " << w.o_.ranks
                                 << ", view " << w.views.back().view.v << " has "
                                 << w.members().size();
    std::string all = fmt::format("order '{}', at least {} members of {}, view {}:", state().order,
                                  w.o_.members_min, w.o_.ranks, w.views.back().view.v);
    for (const auto& r : state().ranks)
      all += fmt::format(" {}{}:{:x} {}", r.rank.v, w.members().contains(r.rank.v) ? "*" : "",
                         r.life.v, r.state);
    SCOPED_TRACE(all);
    for (const auto& r : state().ranks) {
      const bool rests = r.state == "member" || r.state == "absent" || r.state == "quarantined";
      EXPECT_TRUE(rests) << "rank " << r.rank.v << " is " << r.state;
      EXPECT_EQ(r.state == "member", w.members().contains(r.rank.v) && w.processes[r.rank.v].alive)
          << "rank " << r.rank.v << " is " << r.state;
      EXPECT_EQ(r.state == "member", w.processes[r.rank.v].alive);
    }
    for (const auto& m : w.views.back().members)
      EXPECT_EQ(w.processes[m.rank.v].life, m.life)
          << "rank " << m.rank.v << " is " << to_string(w.state(m.rank.v)) << ", at least "
          << w.o_.members_min;
    seen.views += w.views.size();
    for (const auto& [r, at] : w.starts)
      seen.joins += at.size();
  }
  proto::keeper_state state() {
    outbox none;
    return world->keeper->core().on(proto::get_keeper{}, world->now, none).value();
  }

  std::mt19937_64 random_;
};

void sweep(on_loss loss, int seeds) {
  counts all;
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    storm s{static_cast<std::uint64_t>(seed), loss};
    s.run();
    all.views += s.seen.views;
    all.joins += s.seen.joins;
    all.failed += s.seen.failed;
    if (::testing::Test::HasFailure())
      return;
  }
  EXPECT_GT(all.views, static_cast<std::size_t>(seeds));
  EXPECT_GT(all.joins, static_cast<std::size_t>(seeds));
  EXPECT_LT(all.failed, static_cast<std::size_t>(seeds));
}

TEST(keeper_property, shrink_holds_its_rules) {
  sweep(on_loss::shrink, 1000);
}
TEST(keeper_property, restart_holds_its_rules) {
  sweep(on_loss::restart, 1000);
}
TEST(keeper_property, restart_smaller_holds_its_rules) {
  sweep(on_loss::restart_smaller, 1000);
}

/// A rank that dies whenever it is there costs no more starts than its bucket has.
TEST(keeper_property, starts_stay_within_the_bucket) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    keeper_world_options o;
    o.seed = seed;
    o.more = [](engine::keeper_options& k) { k.quarantine = 1min; };
    keeper_world w{o};
    for (int minute = 0; minute < 120; ++minute) {
      for (int s = 0; s < 12; ++s) {
        w.run_for(5s);
        w.kill(1);
      }
    }
    const auto& at = w.starts[1];
    ASSERT_GE(at.size(), 4U);
    for (std::size_t i = 0; i < at.size(); ++i) {
      const auto in_window = std::count_if(at.begin(), at.end(), [&](instant t) {
        return t >= at[i] && t - at[i] < w.keeper_options.restart_window;
      });
      EXPECT_LE(in_window, 2 * w.keeper_options.restarts_max + 1) << "seed " << seed;
    }
    EXPECT_LE(at.size(), 3U + 12U * 3U + 1U) << "three, and three more per ten minutes";
    EXPECT_EQ(w.members().contains(0) && w.members().contains(2) && w.members().contains(3), true);
  }
}

} // namespace
} // namespace di::test
