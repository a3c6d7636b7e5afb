// SPDX-License-Identifier: Apache-2.0
// What waits beside the HTTP threads, and how much of it may.
#include "launch/serve/side_worker.hpp"

#include <gtest/gtest.h>

#include <future>

namespace di::serve {
namespace {

using namespace std::chrono_literals;

TEST(side_worker, takes_no_more_bytes_than_may_wait) {
  std::promise<void> begun, go, last, again;
  const auto gone = go.get_future().share();
  side_worker w;
  ASSERT_TRUE(w.add(side_worker::bytes_max - 10, [&] {
    begun.set_value();
    gone.wait();
  }));
  ASSERT_EQ(begun.get_future().wait_for(30s), std::future_status::ready);
  EXPECT_FALSE(w.add(11, [] { FAIL(); })) << "what is worked on counts";
  EXPECT_TRUE(w.add(10, [&] { last.set_value(); }));
  EXPECT_FALSE(w.add(1, [] { FAIL(); }));
  go.set_value();
  ASSERT_EQ(last.get_future().wait_for(30s), std::future_status::ready);
  // The bytes of the first are free since the second began.
  EXPECT_TRUE(w.add(side_worker::bytes_max - 10, [&] { again.set_value(); }));
  EXPECT_EQ(again.get_future().wait_for(30s), std::future_status::ready);
}

TEST(side_worker, takes_one_body_of_any_size_if_none_waits) {
  std::promise<void> done;
  side_worker w;
  EXPECT_TRUE(w.add(side_worker::bytes_max + 1, [&] { done.set_value(); }));
  EXPECT_EQ(done.get_future().wait_for(30s), std::future_status::ready);
}

} // namespace
} // namespace di::serve
