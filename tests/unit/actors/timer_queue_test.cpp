// SPDX-License-Identifier: Apache-2.0
// timer_queue: one pending timer per name, in order of time.
#include "actors/timer_queue.hpp"

#include <gtest/gtest.h>

namespace di::actors {
namespace {

using namespace std::chrono_literals;

instant at(duration d) {
  return instant{} + d;
}

TEST(timer_queue, fires_in_order_of_time_then_of_arming) {
  timer_queue q;
  q.arm({1, 0}, at(20ms));
  q.arm({2, 0}, at(10ms));
  q.arm({3, 0}, at(10ms));
  EXPECT_EQ(q.next(), at(10ms));
  EXPECT_FALSE(q.take_due(at(9ms)).has_value());
  EXPECT_EQ(q.take_due(at(30ms)), (timer{2, 0}));
  EXPECT_EQ(q.take_due(at(30ms)), (timer{3, 0}));
  EXPECT_EQ(q.take_due(at(30ms)), (timer{1, 0}));
  EXPECT_FALSE(q.next().has_value());
}

TEST(timer_queue, moves_a_timer_that_is_armed_again) {
  timer_queue q;
  q.arm({1, 7}, at(10ms));
  q.arm({1, 7}, at(50ms));
  EXPECT_EQ(q.size(), 1U);
  EXPECT_FALSE(q.take_due(at(49ms)).has_value());
  EXPECT_TRUE(q.take_due(at(50ms)).has_value());
}

TEST(timer_queue, tells_timers_apart_by_kind_and_key) {
  timer_queue q;
  q.arm({1, 1}, at(1ms));
  q.arm({1, 2}, at(2ms));
  q.arm({2, 1}, at(3ms));
  q.disarm({1, 1});
  q.disarm({9, 9}); // unknown: nothing happens
  EXPECT_EQ(q.size(), 2U);
  EXPECT_EQ(q.take_due(at(9ms)), (timer{1, 2}));
}

} // namespace
} // namespace di::actors
