// SPDX-License-Identifier: Apache-2.0
// Log lines and probes.
#include "messaging/base/hang_point.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/probe.hpp"

#include <gtest/gtest.h>

namespace di::test {
namespace {

TEST(log, writes_event_and_pairs_on_one_line) {
  log::set_process("/rank/3");
  EXPECT_EQ(log::line(log::level::info, "plan_published", {{"epoch", 4}, {"moved", 12u}}),
            "info /rank/3 plan_published epoch=4 moved=12");
}

TEST(log, quotes_values_that_would_break_the_line) {
  log::set_process("-");
  EXPECT_EQ(
      log::line(log::level::warn, "x", {{"a", "b c"}, {"d", "e\"f\n"}, {"g", ""}, {"h", true}}),
      R"(warn - x a="b c" d="e\"f\n" g="" h=true)");
  EXPECT_EQ(log::line(log::level::warn, "x", {{"a", std::string("\x01")}}), R"(warn - x a="\x01")");
}

TEST(log, knows_its_levels_by_name) {
  EXPECT_TRUE(log::set_level("error"));
  EXPECT_FALSE(log::enabled(log::level::warn));
  EXPECT_TRUE(log::enabled(log::level::error));
  EXPECT_FALSE(log::set_level("loud"));
  EXPECT_TRUE(log::set_level("off"));
  EXPECT_FALSE(log::enabled(log::level::error));
  log::set_level(log::level::info);
}

TEST(probe, does_nothing_until_it_is_armed) {
  probe::reset();
  EXPECT_FALSE(fault_point("bus.send.drop"));
  reached("somewhere");
  EXPECT_TRUE(probe::visits().empty());
}

TEST(probe, misbehaves_as_planned_and_counts_visits) {
  probe::reset();
  probe::arm("a", {.probability = 1.0, .skip = 2, .times_max = 1});
  EXPECT_FALSE(fault_point("a"));
  EXPECT_FALSE(fault_point("a"));
  EXPECT_TRUE(fault_point("a"));
  EXPECT_FALSE(fault_point("a"));
  EXPECT_FALSE(fault_point("b"));
  reached("c");
  EXPECT_EQ(probe::visits().at("a"), 4u);
  EXPECT_EQ(probe::visits().at("c"), 1u);
  probe::reset();
}

TEST(probe, passes_a_place_to_hang_until_it_is_armed) {
  probe::reset();
  hang_point("here", hang_kind::spins);
  probe::arm("elsewhere", {});
  hang_point("here", hang_kind::blocks);
  probe::arm("here", {.skip = 1});
  hang_point("here", hang_kind::spins);
  EXPECT_EQ(probe::visits().at("here"), 2u);
  probe::reset();
}

TEST(probe, repeats_its_draws_for_a_seed) {
  const auto draws = [] {
    probe::reset(7);
    probe::arm("a", {.probability = 0.5});
    std::string out;
    for (int i = 0; i < 64; ++i)
      out += fault_point("a") ? '1' : '0';
    probe::reset();
    return out;
  };
  const std::string once = draws();
  EXPECT_EQ(once, draws());
  EXPECT_NE(once.find('0'), std::string::npos);
  EXPECT_NE(once.find('1'), std::string::npos);
}

} // namespace
} // namespace di::test
