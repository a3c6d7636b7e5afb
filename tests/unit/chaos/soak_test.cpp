// SPDX-License-Identifier: Apache-2.0
// Random plans: repeatable, and printed so that they can be run again.
#include "chaos/soak.hpp"

#include <gtest/gtest.h>

namespace di::chaos {
namespace {

TEST(soak, draws_the_same_plan_for_a_seed_and_round) {
  const soak_shape shape{8, 1, true};
  EXPECT_EQ(to_yaml(draw_plan(3, 5, shape)), to_yaml(draw_plan(3, 5, shape)));
  EXPECT_NE(to_yaml(draw_plan(3, 5, shape)), to_yaml(draw_plan(3, 6, shape)));
}

TEST(soak, prints_plans_that_can_be_read_again) {
  const soak_shape shape{8, 1, true};
  for (std::uint32_t round = 0; round < 200; ++round) {
    const plan drawn = draw_plan(1, round, shape);
    const std::string text = to_yaml(drawn);
    const auto read = read_plan(text, "drawn.yaml");
    ASSERT_TRUE(read.value.has_value()) << read.problems.front().what << "\n" << text;
    EXPECT_EQ(to_yaml(*read.value), text);
    EXPECT_FALSE(drawn.faults.empty());
    for (const fault& f : drawn.faults)
      EXPECT_FALSE(f.target.kind == target_kind::rank && f.target.index >= shape.ranks);
  }
}

TEST(soak, lets_control_live_where_no_journal_is_on_disk) {
  const soak_shape shape{4, 1, false};
  for (std::uint32_t round = 0; round < 200; ++round)
    for (const fault& f : draw_plan(1, round, shape).faults)
      EXPECT_FALSE(f.kind == fault_kind::kill && f.target.kind == target_kind::control);
}

TEST(cycles, kill_once_whenever_the_group_is_whole) {
  const plan p = cycle_plan(1, 0, 50);
  ASSERT_EQ(p.faults.size(), 1U);
  EXPECT_EQ(p.faults[0].times, 50U);
  EXPECT_EQ(p.faults[0].trigger.kind, trigger_kind::whole);
  EXPECT_TRUE(read_plan(to_yaml(p), "cycles.yaml").value.has_value());
}

} // namespace
} // namespace di::chaos
