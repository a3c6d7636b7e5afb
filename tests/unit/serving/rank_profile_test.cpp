// SPDX-License-Identifier: Apache-2.0
// RANK knows what steps cost before its first request.
#include "actors/rank.hpp"

#include <gtest/gtest.h>

namespace di::test {
namespace {

TEST(rank_profile, fills_the_planners_tables_before_the_first_request) {
  actors::rank_parts parts;
  parts.layout.page_bytes = 64;
  parts.pool = engine::page_pool::create(64, 4).value();
  parts.prefixes.page_tokens = engine::page_tokens;
  parts.profile.steps = {{1, 2.0}, {2, 2.5}, {4, 3.5}};
  parts.profile.drafts = {{1, 0.5}, {2, 0.75}};
  const actors::rank_actor rank{std::move(parts)};
  const engine::verify_planner& planner = rank.core().tuning().planner;
  EXPECT_EQ(rank.core().steps(), 0U);
  EXPECT_EQ(planner.step().known(), 3U);
  EXPECT_DOUBLE_EQ(planner.step().ms(4), 3.5);
  EXPECT_EQ(planner.draft().known(), 2U);
  EXPECT_DOUBLE_EQ(planner.draft().ms(2), 0.75);
  rank.check();
}

} // namespace
} // namespace di::test
