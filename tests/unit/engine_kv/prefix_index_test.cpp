// SPDX-License-Identifier: Apache-2.0
// Prefix index: what it shares, with whom, and in which order it lets go.
#include "engine/kv/prefix_index.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace di::engine {
namespace {

using token_list = std::vector<token_id>;

class prefix_index_test : public ::testing::Test {
protected:
  static std::shared_ptr<const window_snapshot> windows(std::int64_t length) {
    auto made = std::make_shared<window_snapshot>();
    made->length = length;
    made->rings.resize(1000);
    return made;
  }

  /// A sequence that wrote these tokens and has ended; its pages stay known.
  void leave_behind(const token_list& tokens, const prefix_key& key = {}) {
    std::vector<page_id> pages;
    for (std::size_t i = 0; i < tokens.size(); i += 4)
      pages.push_back(*pool->acquire());
    prefix_cursor cursor;
    index.publish(cursor, tokens, pages, key);
    for (const page_id p : pages)
      pool->release(p);
  }
  prefix_match find(const token_list& tokens, const prefix_key& key = {}) {
    return index.match(tokens, key, 100, snapshot_kind::full, 100);
  }

  std::unique_ptr<page_pool> pool = std::move(*page_pool::create(64, 6));
  prefix_index index{*pool, {"contract", 4, 2 * windows(4)->bytes()}};
};

TEST_F(prefix_index_test, finds_the_longest_known_beginning_in_whole_pages) {
  leave_behind({1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_EQ(find({1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9}).hit, 8) << "a partial page is not shared";
  EXPECT_EQ(find({1, 2, 3, 4, 5, 6, 7, 9}).hit, 4);
  EXPECT_EQ(find({2, 2, 3, 4}).hit, 0);
  EXPECT_EQ(find({1, 2, 3}).hit, 0);
  EXPECT_EQ(index.match(token_list{1, 2, 3, 4, 5, 6, 7, 8}, {}, 7, snapshot_kind::full, 0).hit, 4)
      << "no longer than asked for";
  EXPECT_EQ(index.counts().lookups, 5U);
  EXPECT_EQ(index.counts().hits, 3U);
}

TEST_F(prefix_index_test, shares_nothing_between_salts_contracts_and_bounded_hits) {
  leave_behind({1, 2, 3, 4, 5, 6, 7, 8}, {"mine", 0});
  EXPECT_EQ(find({1, 2, 3, 4}).hit, 0);
  EXPECT_EQ(find({1, 2, 3, 4, 5, 6, 7, 8}, {"mine", 0}).hit, 8);
  EXPECT_EQ(find({1, 2, 3, 4, 5, 6, 7, 8}, {"mine", 4}).hit, 4)
      << "behind a bounded hit of 4 tokens other pages are wanted";
  prefix_index other{*pool, {"another contract", 4, 0}};
  EXPECT_EQ(other.known(token_list{1, 2, 3, 4}, {"mine", 0}, 100), 0);
}

TEST_F(prefix_index_test, evicts_the_least_recently_used_leaves_first) {
  leave_behind({1, 1, 1, 1, 2, 2, 2, 2});
  leave_behind({1, 1, 1, 1, 3, 3, 3, 3});
  find({1, 1, 1, 1, 2, 2, 2, 2});
  EXPECT_EQ(index.evict(1), 1U);
  EXPECT_EQ(find({1, 1, 1, 1, 3, 3, 3, 3}).hit, 4) << "not used since";
  EXPECT_EQ(find({1, 1, 1, 1, 2, 2, 2, 2}).hit, 8);
  EXPECT_EQ(index.evict(1), 1U);
  EXPECT_EQ(find({1, 1, 1, 1, 2, 2, 2, 2}).hit, 4) << "what others stand on goes last";
  EXPECT_EQ(index.evict(5), 1U);
  EXPECT_EQ(index.pages(), 0U);
  EXPECT_EQ(pool->free_pages(), 6U);
}

TEST_F(prefix_index_test, never_evicts_a_page_that_a_sequence_holds) {
  leave_behind({1, 2, 3, 4, 5, 6, 7, 8});
  const auto match = find({1, 2, 3, 4, 9});
  pool->share(match.pages[0]);
  EXPECT_EQ(index.evictable_pages(), 1U);
  EXPECT_EQ(index.evict(5), 1U);
  EXPECT_EQ(index.known(token_list{1, 2, 3, 4}, {}, 4), 4);
  EXPECT_TRUE(index.check(match.pages).ok());
  EXPECT_FALSE(index.check({}).ok()) << "a missing holder must be noticed";
  pool->release(match.pages[0]);
  EXPECT_TRUE(index.check({}).ok());
}

TEST_F(prefix_index_test, makes_room_or_leaves_all_as_it_is) {
  leave_behind({1, 2, 3, 4, 5, 6, 7, 8});
  const page_id held = *pool->acquire();
  EXPECT_EQ(pool->free_pages(), 3U);
  EXPECT_EQ(index.make_room(6).error().code, ec::kv_exhausted);
  EXPECT_EQ(index.pages(), 2U);
  EXPECT_TRUE(index.make_room(4).ok());
  EXPECT_EQ(index.pages(), 1U);
  EXPECT_TRUE(index.make_room(5).ok());
  EXPECT_EQ(pool->free_pages(), 5U);
  pool->release(held);
}

TEST_F(prefix_index_test, keeps_snapshots_within_its_bytes) {
  const token_list one{1, 1, 1, 1}, two{2, 2, 2, 2}, three{3, 3, 3, 3};
  for (const auto& text : {one, two, three}) {
    leave_behind(text);
    EXPECT_TRUE(index.wants_snapshot(text, {}, snapshot_kind::full));
    index.keep_snapshot(text, {}, snapshot_kind::full, windows(4));
    EXPECT_FALSE(index.wants_snapshot(text, {}, snapshot_kind::full));
    find(one); // used again and again
  }
  EXPECT_NE(find(one).snapshot, nullptr);
  EXPECT_EQ(find(two).snapshot, nullptr) << "least recently used";
  EXPECT_NE(find(three).snapshot, nullptr);
  EXPECT_EQ(index.match(one, {}, 100, snapshot_kind::encoder, 100).snapshot, nullptr)
      << "kinds do not serve for each other";
  EXPECT_EQ(index.match(one, {}, 100, snapshot_kind::full, 3).snapshot, nullptr);
  auto large = std::make_shared<window_snapshot>();
  large->length = 4;
  large->rings.resize(100000);
  index.keep_snapshot(two, {}, snapshot_kind::full, large);
  EXPECT_EQ(find(two).snapshot, nullptr) << "larger than all room";
  index.forget_snapshot(one, {}, snapshot_kind::full);
  EXPECT_EQ(find(one).snapshot, nullptr);
  index.evict(6);
  EXPECT_EQ(index.snapshot_bytes(), 0U) << "they go with their pages";
}

TEST_F(prefix_index_test, takes_windows_behind_a_bounded_hit_above_the_hit_only) {
  leave_behind({1, 2, 3, 4, 5, 6, 7, 8}, {"", 4});
  const token_list at_hit{1, 2, 3, 4};
  EXPECT_FALSE(index.wants_snapshot(at_hit, {"", 4}, snapshot_kind::full))
      << "that page is one of a cold run";
  EXPECT_TRUE(index.wants_snapshot(at_hit, {}, snapshot_kind::full));
  index.keep_snapshot(at_hit, {}, snapshot_kind::full, windows(4));
  EXPECT_EQ(find({1, 2, 3, 4, 5, 6, 7, 8}, {"", 4}).snapshot, nullptr);
  EXPECT_EQ(find({1, 2, 3, 4, 5, 6, 7, 8}, {"", 4}).hit, 8);
}

} // namespace
} // namespace di::engine
