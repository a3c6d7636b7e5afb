// SPDX-License-Identifier: Apache-2.0
// restart_core against a random world of dying children: 1000 seeds.
#include "engine/core/restart_core.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace di::engine {
namespace {

using kind = restart_action::kind;

// What really runs, and the rules that no seed may break.
class world {
public:
  explicit world(std::uint64_t seed) : random_{seed} {
    const auto n = 1 + random_() % 6;
    for (std::size_t i = 0; i < n; ++i) {
      restart_rule r;
      r.strategy = static_cast<restart_strategy>(random_() % 3);
      r.budget = static_cast<restart_budget>(random_() % 2);
      r.restarts_max = static_cast<std::uint32_t>(random_() % 8);
      r.window = std::chrono::milliseconds{1 + random_() % 20'000};
      r.backoff_first = std::chrono::milliseconds{random_() % 3 * 50};
      r.backoff_max = std::chrono::milliseconds{random_() % 1'000};
      rules_.push_back(r);
    }
    children_.resize(n);
    core_.emplace(rules_, seed);
  }

  void run(int steps) {
    apply(core_->start(now_));
    for (int i = 0; i < steps && !over_; ++i)
      step(true);
    // Healing: nobody dies any more; all asked stops happen, all waits pass.
    for (int i = 0; i < 2'000 && !over_; ++i)
      step(false);
    if (over_) {
      for (const auto& c : children_)
        EXPECT_FALSE(c.alive) << "a child outlived the giving up";
      return;
    }
    for (std::size_t i = 0; i < children_.size(); ++i)
      EXPECT_TRUE(children_[i].alive && !children_[i].asked) << "child " << i << " never came back";
  }

  bool over() const { return over_; }
  std::uint64_t starts() const { return starts_; }

private:
  struct child {
    bool alive = false, asked = false;
    std::uint64_t life = 0;
    std::vector<instant> own_deaths; ///< that were answered with a restart
  };

  void step(bool deadly) {
    now_ = now_ + std::chrono::milliseconds{random_() % 400};
    const auto i = random_() % children_.size();
    auto& c = children_[i];
    if (c.alive && (c.asked || (deadly && random_() % 4 == 0)))
      die(i);
    else if (deadly && random_() % 8 == 0) { // the end of a life that is not
      EXPECT_TRUE(core_->on_down(i, c.life + 1 + random_() % 3, {}, now_).empty());
    }
    if (const auto due = core_->next_due(); due && *due <= now_)
      apply(core_->on_due(now_));
    core_->check();
  }

  void die(std::size_t i) {
    auto& c = children_[i];
    c.alive = false;
    const bool asked = std::exchange(c.asked, false);
    const auto actions = core_->on_down(i, c.life, {ec::internal, "died"}, now_);
    if (!asked && !ending_) {
      // The budget of a window: the one thing that outside eyes can count.
      c.own_deaths.push_back(now_);
      const auto& r = rules_[i];
      const auto recent = std::count_if(c.own_deaths.begin(), c.own_deaths.end(),
                                        [&](instant t) { return now_ - t < r.window; });
      const bool down = core_->state(i) == child_state::down;
      if (r.budget == restart_budget::window) {
        EXPECT_EQ(down, recent > static_cast<std::ptrdiff_t>(r.restarts_max)) << "child " << i;
      } else if (!down) { // a full bucket and what flows in
        EXPECT_LE(recent, 2 * static_cast<std::ptrdiff_t>(r.restarts_max)) << "child " << i;
      }
      ending_ = down;
    }
    apply(actions);
  }

  void apply(const std::vector<restart_action>& actions) {
    std::optional<std::size_t> last_start, last_stop;
    for (const auto& a : actions) {
      ASSERT_FALSE(over_) << "an action after giving up";
      if (a.what == kind::give_up) {
        EXPECT_TRUE(ending_) << "gave up with budget left";
        over_ = true;
        continue;
      }
      auto& c = children_.at(a.child);
      if (a.what == kind::stop) {
        EXPECT_TRUE(c.alive && !c.asked) << "stop of a child that does not run";
        EXPECT_EQ(a.life, c.life);
        EXPECT_TRUE(!last_stop || a.child < *last_stop) << "stops go last to first";
        last_stop = a.child;
        c.asked = true;
        continue;
      }
      EXPECT_FALSE(ending_) << "start after the end was decided";
      EXPECT_FALSE(c.alive) << "start of a child that runs";
      EXPECT_EQ(a.life, c.life + 1) << "lives rise by one";
      EXPECT_TRUE(!last_start || a.child > *last_start) << "starts go first to last";
      for (const auto& other : children_)
        EXPECT_FALSE(other.asked) << "start while a sibling is still stopping";
      last_start = a.child;
      c.life = a.life;
      c.alive = true;
      ++starts_;
    }
  }

  std::mt19937_64 random_;
  std::vector<restart_rule> rules_;
  std::vector<child> children_;
  std::optional<restart_core> core_;
  instant now_{};
  bool ending_ = false, over_ = false;
  std::uint64_t starts_ = 0;
};

TEST(restart_property, holds_for_1000_seeds) {
  int gave_up = 0;
  std::uint64_t starts = 0;
  for (std::uint64_t seed = 0; seed < 1'000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    world w{seed};
    w.run(200);
    gave_up += w.over();
    starts += w.starts();
    if (::testing::Test::HasFailure())
      break;
  }
  // Both ends must be reached, or the rules above prove little.
  EXPECT_GT(gave_up, 100);
  EXPECT_LT(gave_up, 990);
  EXPECT_GT(starts, 5'000U);
}

} // namespace
} // namespace di::engine
