// SPDX-License-Identifier: Apache-2.0
// A sequence's bookkeeping behind a cached prefix: floors, adopted pages, snapshots, forks, and
// what is refused. What the rows compute is tested in tests/property/prefix_modes_test.cpp.
#include "engine/model/sequence_state.hpp"
#include "engine/model/synthetic.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace di::engine {
namespace {

class sequence_prefix : public ::testing::Test {
protected:
  sequence_prefix() {
    EXPECT_TRUE(donor.reserve(300).ok());
    donor.commit(std::vector<token_id>(300, 5));
    for (std::int64_t layer = 0; layer < layout.layers; ++layer)
      for (std::int64_t p = 300 - layout.ring_rows; p < 300; ++p)
        std::memset(donor.window_row(layer, p), static_cast<int>(layer * 7 + p),
                    layout.window_row_bytes);
  }
  std::vector<token_id> text(std::size_t n) const { return std::vector<token_id>(n, 5); }
  std::span<const page_id> first_pages(std::size_t n) const { return donor.pages().first(n); }
  ec refusal(std::size_t tokens, std::size_t pages, sequence_floors floors, std::int64_t row,
             const window_snapshot* windows = nullptr) {
    sequence_state s{layout, *pool};
    const auto done = s.adopt(text(tokens), first_pages(pages), floors, row, windows);
    EXPECT_EQ(s.length(), done.ok() ? row : 0);
    EXPECT_EQ(s.pages().size(), done.ok() ? pages : 0u);
    return done.ok() ? ec::ok : done.error().code;
  }

  kv_layout layout = make_kv_layout(*parse_model_spec(*preset_config("tiny")), 6);
  std::unique_ptr<page_pool> pool = std::move(*page_pool::create(layout.page_bytes, 8));
  sequence_state donor{layout, *pool};
};

TEST_F(sequence_prefix, refuses_prefixes_that_do_not_fit_together) {
  EXPECT_EQ(refusal(256, 2, {0, 0, 256, false}, 0), ec::ok);
  EXPECT_EQ(refusal(250, 2, {0, 0, 250, false}, 0), ec::bad_argument) << "no whole pages";
  EXPECT_EQ(refusal(256, 1, {0, 0, 256, false}, 0), ec::bad_argument) << "a page is missing";
  EXPECT_EQ(refusal(256, 2, {0, 0, 128, false}, 0), ec::bad_argument) << "it would write there";
  EXPECT_EQ(refusal(256, 2, {100, 0, 256, false}, 120), ec::bad_argument) << "rows without windows";
  EXPECT_EQ(refusal(256, 2, {100, 0, 256, false}, 100), ec::ok);
  EXPECT_EQ(refusal(256, 2, {300, 0, 256, false}, 300), ec::bad_argument) << "above the hit";
  EXPECT_EQ(refusal(256, 2, {-1, 0, 256, false}, -1), ec::bad_argument);
}

TEST_F(sequence_prefix, refuses_windows_of_another_place_or_kind) {
  sequence_state copy{layout, *pool};
  ASSERT_TRUE(copy.reserve(256).ok());
  copy.commit(text(256));
  auto full = copy.snapshot(256, snapshot_kind::full);
  auto encoder = copy.snapshot(256, snapshot_kind::encoder);
  ASSERT_TRUE(full.ok() && encoder.ok());
  EXPECT_EQ(encoder->layers, 5);
  EXPECT_EQ(refusal(256, 2, {0, 0, 256, false}, 256, &*full), ec::ok);
  EXPECT_EQ(refusal(256, 2, {0, 0, 256, false}, 128, &*full), ec::bad_argument);
  EXPECT_EQ(refusal(256, 2, {0, 0, 256, false}, 256, &*encoder), ec::bad_argument)
      << "the rings behind the split are not in it";
  EXPECT_EQ(refusal(256, 2, {0, 256, 256, false}, 256, &*encoder), ec::ok);
  EXPECT_EQ(refusal(256, 2, {0, 255, 256, false}, 256, &*encoder), ec::bad_argument);
  full->rings.pop_back();
  EXPECT_EQ(refusal(256, 2, {0, 0, 256, false}, 256, &*full), ec::bad_argument);
}

TEST_F(sequence_prefix, takes_windows_only_while_the_rings_have_them) {
  EXPECT_EQ(donor.snapshot(256, snapshot_kind::full).error().code, ec::bad_argument)
      << "44 rows ago";
  EXPECT_EQ(donor.snapshot(300, snapshot_kind::full).error().code, ec::bad_argument);
  sequence_state s{layout, *pool};
  ASSERT_TRUE(s.set_floors({0, 100, 0, false}).ok());
  ASSERT_TRUE(s.reserve(134).ok());
  s.commit(text(134));
  EXPECT_EQ(s.snapshot(128, snapshot_kind::full).error().code, ec::bad_argument)
      << "windows behind the split depend on the floor";
  EXPECT_TRUE(s.snapshot(128, snapshot_kind::encoder).ok());
  s.commit(text(1));
  EXPECT_FALSE(s.snapshot(128, snapshot_kind::encoder).ok());
}

TEST_F(sequence_prefix, gives_no_windows_while_a_step_writes_rows) {
  sequence_state s{layout, *pool};
  ASSERT_TRUE(s.reserve(160).ok());
  s.commit(text(130));
  ASSERT_TRUE(s.snapshot(128, snapshot_kind::full).ok());
  s.begin_rows(2);
  EXPECT_EQ(s.snapshot(128, snapshot_kind::full).error().code, ec::bad_argument);
  EXPECT_EQ(s.rebase({0, 0, 128, false}).error().code, ec::bad_argument);
  s.commit(text(2));
  EXPECT_TRUE(s.snapshot(128, snapshot_kind::full).ok());
  s.begin_rows(20); // given up: what it wrote stays written
  ASSERT_TRUE(s.truncate(132).ok());
  EXPECT_FALSE(s.snapshot(128, snapshot_kind::full).ok());
}

TEST_F(sequence_prefix, sets_floors_before_the_first_row_only) {
  sequence_state s{layout, *pool};
  EXPECT_EQ(s.set_floors({0, 0, 100, false}).error().code, ec::bad_argument);
  EXPECT_TRUE(s.set_floors({0, 40, 0, false}).ok());
  ASSERT_TRUE(s.reserve(10).ok());
  s.commit(text(10));
  EXPECT_EQ(s.set_floors({}).error().code, ec::bad_argument);
  ASSERT_TRUE(s.truncate(0).ok());
  EXPECT_EQ(s.floors(), sequence_floors{}) << "as new";
}

TEST_F(sequence_prefix, does_not_take_back_what_came_from_the_cache) {
  sequence_state s{layout, *pool};
  ASSERT_TRUE(s.adopt(text(256), first_pages(2), {250, 0, 256, false}, 250).ok());
  ASSERT_TRUE(s.reserve(258).ok());
  s.commit(text(8));
  EXPECT_EQ(s.truncate(255).error().code, ec::bad_argument);
  EXPECT_TRUE(s.truncate(256).ok());
  EXPECT_EQ(s.pages().size(), 2u);
  EXPECT_EQ(pool->references(s.pages()[1]), 2u);
  EXPECT_TRUE(s.truncate(0).ok());
  EXPECT_EQ(s.pages().size(), 0u);
  EXPECT_TRUE(pool->check(donor.pages()).ok());
}

TEST_F(sequence_prefix, counts_copies_of_shared_pages_as_wanted) {
  const auto fork = donor.fork();
  EXPECT_EQ(fork->pages_wanted(300), 0);
  EXPECT_EQ(fork->pages_wanted(301), 1) << "a copy of the page that both stand in";
  EXPECT_EQ(fork->pages_wanted(400), 2);
  EXPECT_FALSE(fork->may_write(300));
  ASSERT_TRUE(fork->reserve(301).ok());
  EXPECT_TRUE(fork->may_write(300));
  EXPECT_FALSE(fork->may_write(255)) << "shared";
  EXPECT_EQ(donor.pages_wanted(301), 0) << "the other one has its page to itself again";
  EXPECT_EQ(fork->hash(), donor.hash());
}

TEST_F(sequence_prefix, takes_no_copy_if_there_is_no_room_for_all) {
  const auto fork = donor.fork();
  std::vector<page_id> rest;
  while (pool->free_pages() > 1)
    rest.push_back(*pool->acquire());
  EXPECT_EQ(fork->reserve(400).error().code, ec::kv_exhausted);
  EXPECT_EQ(fork->pages()[2], donor.pages()[2]);
  EXPECT_EQ(pool->free_pages(), 1u);
  for (const page_id p : rest)
    pool->release(p);
}

} // namespace
} // namespace di::engine
