// SPDX-License-Identifier: Apache-2.0
// restart_core: groups, budgets, waits, giving up.
#include "engine/core/restart_core.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

using namespace std::chrono_literals;
using kind = restart_action::kind;

const error crash{ec::internal, "crash"};

restart_rule rule(restart_strategy strategy, std::uint32_t restarts_max = 3,
                  duration window = 10s) {
  restart_rule r;
  r.strategy = strategy;
  r.restarts_max = restarts_max;
  r.window = window;
  return r;
}

std::string text(const std::vector<restart_action>& actions) {
  std::string all;
  for (const auto& a : actions) {
    all += all.empty() ? "" : " ";
    if (a.what == kind::give_up)
      all += "give_up";
    else
      all += fmt::format("{}{}.{}", a.what == kind::start ? "+" : "-", a.child, a.life);
  }
  return all;
}

instant at(duration d) {
  return instant{} + d;
}

TEST(restart_core, starts_children_in_order) {
  restart_core core{{rule({}), rule({}), rule({})}, 1};
  EXPECT_EQ(text(core.start(at(0s))), "+0.1 +1.1 +2.1");
  EXPECT_FALSE(core.next_due().has_value());
}

TEST(restart_core, restarts_one_alone) {
  restart_core core{{rule(restart_strategy::one_for_one), rule({})}, 1};
  (void)core.start(at(0s));
  EXPECT_EQ(text(core.on_down(0, 1, crash, at(1s))), "+0.2");
  EXPECT_EQ(core.restarts(0), 1U);
  EXPECT_EQ(core.life(1), 1U);
}

TEST(restart_core, restarts_all_in_order_after_all_have_stopped) {
  restart_core core{{rule({}), rule(restart_strategy::one_for_all), rule({})}, 1};
  (void)core.start(at(0s));
  EXPECT_EQ(text(core.on_down(1, 1, crash, at(1s))), "-2.1 -0.1");
  EXPECT_EQ(text(core.on_down(0, 1, crash, at(2s))), "");
  EXPECT_EQ(text(core.on_down(2, 1, crash, at(3s))), "+0.2 +1.2 +2.2");
}

TEST(restart_core, restarts_the_rest_and_leaves_the_first_alone) {
  restart_core core{{rule({}), rule(restart_strategy::rest_for_one), rule({})}, 1};
  (void)core.start(at(0s));
  EXPECT_EQ(text(core.on_down(1, 1, crash, at(1s))), "-2.1");
  EXPECT_EQ(text(core.on_down(2, 1, crash, at(1s))), "+1.2 +2.2");
  EXPECT_EQ(core.life(0), 1U);
}

TEST(restart_core, asked_stops_cost_no_budget) {
  restart_core core{{rule(restart_strategy::one_for_all, 2), rule({}, 0)}, 1};
  (void)core.start(at(0s));
  for (std::uint64_t life = 1; life <= 2; ++life) {
    EXPECT_EQ(text(core.on_down(0, life, crash, at(1s))), fmt::format("-1.{}", life));
    EXPECT_EQ(text(core.on_down(1, life, crash, at(1s))),
              fmt::format("+0.{} +1.{}", life + 1, life + 1));
  }
}

TEST(restart_core, gives_up_past_its_budget_after_stopping_the_others) {
  restart_core core{{rule({}), rule({}, 2), rule({})}, 1};
  (void)core.start(at(0s));
  EXPECT_EQ(text(core.on_down(1, 1, crash, at(1s))), "+1.2");
  EXPECT_EQ(text(core.on_down(1, 2, crash, at(2s))), "+1.3");
  EXPECT_EQ(text(core.on_down(1, 3, crash, at(3s))), "-2.1 -0.1");
  EXPECT_EQ(text(core.on_down(0, 1, crash, at(3s))), "");
  const auto last = core.on_down(2, 1, crash, at(3s));
  ASSERT_EQ(text(last), "give_up");
  EXPECT_EQ(last[0].child, 1U);
  EXPECT_EQ(last[0].reason->render(),
            "gave_up: no restart left of 2 in 10000 ms; last reason: internal: crash");
  EXPECT_EQ(text(core.on_due(at(99s))), "");
}

TEST(restart_core, forgets_restarts_outside_the_window) {
  restart_core core{{rule({}, 1, 10s)}, 1};
  (void)core.start(at(0s));
  EXPECT_EQ(text(core.on_down(0, 1, crash, at(1s))), "+0.2");
  EXPECT_EQ(text(core.on_down(0, 2, crash, at(11s))), "+0.3");
  EXPECT_EQ(text(core.on_down(0, 3, crash, at(20s))), "give_up");
}

TEST(restart_core, fills_a_bucket_evenly) {
  auto r = rule({}, 3, 600s);
  r.budget = restart_budget::bucket;
  restart_core core{{r}, 1};
  (void)core.start(at(0s));
  EXPECT_EQ(text(core.on_down(0, 1, crash, at(1s))), "+0.2");
  EXPECT_EQ(text(core.on_down(0, 2, crash, at(2s))), "+0.3");
  EXPECT_EQ(text(core.on_down(0, 3, crash, at(3s))), "+0.4");
  EXPECT_EQ(text(core.on_down(0, 4, crash, at(202s))), "+0.5"); // one token per 200 s
  EXPECT_EQ(text(core.on_down(0, 5, crash, at(300s))), "give_up");
}

TEST(restart_core, doubles_the_wait_up_to_its_limit) {
  auto r = rule({}, 9, 60s);
  r.backoff_first = 1s;
  r.backoff_max = 3s;
  restart_core core{{r}, 7};
  (void)core.start(at(0s));
  instant now = at(0s);
  const std::vector<duration> waits{1s, 2s, 3s, 3s};
  for (std::size_t i = 0; i < waits.size(); ++i) {
    EXPECT_EQ(text(core.on_down(0, i + 1, crash, now)), "");
    ASSERT_TRUE(core.next_due().has_value());
    const auto wait = *core.next_due() - now;
    EXPECT_GE(wait, waits[i]);
    EXPECT_LT(wait, waits[i] + waits[i] / 4);
    EXPECT_EQ(text(core.on_due(*core.next_due() + -1ns)), "");
    now = *core.next_due();
    EXPECT_EQ(text(core.on_due(now)), fmt::format("+0.{}", i + 2));
  }
  EXPECT_EQ(text(core.on_down(0, 5, crash, now + 60s)), "");
  EXPECT_LT(*core.next_due() - (now + 60s), 2s); // a long life starts the row anew
}

TEST(restart_core, ignores_and_counts_ends_of_other_lives) {
  restart_core core{{rule({})}, 1};
  (void)core.start(at(0s));
  (void)core.on_down(0, 1, crash, at(1s));
  EXPECT_EQ(text(core.on_down(0, 1, crash, at(1s))), "");
  EXPECT_EQ(text(core.on_down(7, 1, crash, at(1s))), "");
  EXPECT_EQ(core.stale_downs(), 2U);
  EXPECT_EQ(core.state(0), child_state::running);
}

TEST(restart_core, stops_last_to_first_and_stays_down) {
  restart_core core{{rule({}), rule({})}, 1};
  (void)core.start(at(0s));
  EXPECT_EQ(text(core.stop()), "-1.1 -0.1");
  EXPECT_EQ(text(core.on_down(0, 1, crash, at(1s))), "");
  EXPECT_EQ(text(core.on_down(1, 1, crash, at(1s))), "");
  EXPECT_TRUE(core.all_down());
}

TEST(restart_core, names_its_strategies) {
  EXPECT_EQ(parse_strategy("rest_for_one").value(), restart_strategy::rest_for_one);
  EXPECT_EQ(parse_strategy("all").error().code, ec::bad_config);
}

} // namespace
} // namespace di::engine
