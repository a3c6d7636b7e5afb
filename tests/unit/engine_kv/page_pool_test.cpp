// SPDX-License-Identifier: Apache-2.0
// Page pool: bookkeeping, bounds, conservation under random use.
#include "engine/kv/page_pool.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace di::engine {
namespace {

TEST(page_pool, refuses_more_pages_than_it_has) {
  auto pool = page_pool::create(100, 2);
  ASSERT_TRUE(pool.ok());
  ASSERT_TRUE((*pool)->acquire().ok());
  ASSERT_TRUE((*pool)->acquire().ok());
  const auto third = (*pool)->acquire();
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().code, ec::kv_exhausted);
}

TEST(page_pool, refuses_an_empty_or_absurd_slab) {
  EXPECT_EQ(page_pool::create(0, 2).error().code, ec::bad_argument);
  EXPECT_EQ(page_pool::create(64, 0).error().code, ec::bad_argument);
  EXPECT_EQ(page_pool::create(std::size_t{1} << 62, 1000).error().code, ec::limit_exceeded);
}

TEST(page_pool, gives_pages_that_do_not_overlap) {
  auto pool = page_pool::create(100, 3);
  ASSERT_TRUE(pool.ok());
  const page_id a = *(*pool)->acquire();
  const page_id b = *(*pool)->acquire();
  EXPECT_GE((*pool)->page_bytes(), 100u);
  EXPECT_EQ((*pool)->page_bytes() % 64, 0u);
  const auto distance = (*pool)->data(a) - (*pool)->data(b);
  EXPECT_GE(static_cast<std::size_t>(std::abs(distance)), (*pool)->page_bytes());
}

TEST(page_pool, keeps_a_shared_page_until_the_last_release) {
  auto pool = page_pool::create(64, 1);
  ASSERT_TRUE(pool.ok());
  const page_id page = *(*pool)->acquire();
  (*pool)->share(page);
  (*pool)->release(page);
  EXPECT_EQ((*pool)->references(page), 1u);
  EXPECT_EQ((*pool)->free_pages(), 0u);
  (*pool)->release(page);
  EXPECT_EQ((*pool)->free_pages(), 1u);
}

TEST(page_pool, conserves_pages_under_random_use) {
  std::mt19937 random{7};
  auto pool = page_pool::create(64, 17);
  ASSERT_TRUE(pool.ok());
  std::vector<page_id> held;
  for (int step = 0; step < 2000; ++step) {
    const auto action = random() % 3;
    if (action == 0) {
      if (const auto page = (*pool)->acquire(); page.ok())
        held.push_back(*page);
    } else if (!held.empty()) {
      const std::size_t at = random() % held.size();
      if (action == 1) {
        (*pool)->share(held[at]);
        held.push_back(held[at]);
      } else {
        (*pool)->release(held[at]);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    ASSERT_TRUE((*pool)->check(held).ok());
  }
  if (!held.empty()) {
    held.pop_back();
    EXPECT_FALSE((*pool)->check(held).ok()) << "a missing holder must be noticed";
  }
}

} // namespace
} // namespace di::engine
