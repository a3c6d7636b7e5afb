// SPDX-License-Identifier: Apache-2.0
// Cached state of a sequence: sizes as the model's formats say, pages taken and given back,
// rollback.
#include "engine/model/sequence_state.hpp"
#include "engine/model/synthetic.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace di::engine {
namespace {

model_spec preset_spec(const char* name) {
  return *parse_model_spec(*preset_config(name));
}

class sequence_state_test : public ::testing::Test {
protected:
  kv_layout layout = make_kv_layout(preset_spec("tiny"), 6);
  std::unique_ptr<page_pool> pool = std::move(*page_pool::create(layout.page_bytes, 4));
};

TEST(kv_layout, takes_890_bytes_a_token_in_the_real_model) {
  const kv_layout layout = make_kv_layout(preset_spec("real"), 6);
  EXPECT_EQ(layout.bytes_per_token(), 890.0);
  EXPECT_EQ(layout.ring_rows, 134);
  EXPECT_EQ(layout.window_row_bytes, 528u);
  ASSERT_EQ(layout.sources.size(), 4u);
  EXPECT_EQ(layout.sources[0].main_row_bytes, 288u);
  EXPECT_EQ(layout.sources[0].index_row_bytes, 68u);
  EXPECT_EQ(layout.sources[0].page_entries, 64);
  EXPECT_EQ(layout.sources[3].page_entries, 128);
}

TEST(kv_layout, keeps_a_window_row_per_layer_and_a_tail_per_pair_source) {
  const kv_layout layout = make_kv_layout(preset_spec("real"), 6);
  EXPECT_GE(layout.tail_pairs * 2, 8);
  const std::size_t tails = 3u * static_cast<std::size_t>(layout.tail_pairs) * 2 * 512 * 4;
  EXPECT_EQ(layout.private_bytes(), (40u + 3u) * 134u * 528u + tails);
}

TEST(kv_layout, can_take_back_a_whole_block_of_drafts) {
  model_spec spec = preset_spec("tiny");
  EXPECT_EQ(make_kv_layout(spec, 3).verify_rows, 5);
  spec.dspark_block_size = 12;
  EXPECT_EQ(make_kv_layout(spec).verify_rows, 12);
  spec.num_nextn_predict_layers = 0;
  EXPECT_EQ(make_kv_layout(spec, 3).verify_rows, 3);
}

TEST(kv_layout, gives_every_page_whole_entries) {
  const kv_layout layout = make_kv_layout(preset_spec("tiny"), 8);
  EXPECT_EQ(layout.bytes_per_token(), 106.0);
  EXPECT_EQ(layout.pages_for(0), 0);
  EXPECT_EQ(layout.pages_for(1), 1);
  EXPECT_EQ(layout.pages_for(page_tokens), 1);
  EXPECT_EQ(layout.pages_for(page_tokens + 1), 2);
}

TEST_F(sequence_state_test, takes_all_pages_or_none) {
  sequence_state first{layout, *pool};
  ASSERT_TRUE(first.reserve(3 * page_tokens).ok());
  sequence_state second{layout, *pool};
  const auto refused = second.reserve(2 * page_tokens);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ec::kv_exhausted);
  EXPECT_EQ(pool->free_pages(), 1u);
  EXPECT_TRUE(second.reserve(page_tokens).ok());
}

TEST_F(sequence_state_test, gives_its_pages_back_when_it_ends) {
  {
    sequence_state sequence{layout, *pool};
    ASSERT_TRUE(sequence.reserve(500).ok());
    EXPECT_EQ(pool->free_pages(), 0u);
    EXPECT_TRUE(pool->check(sequence.pages()).ok());
  }
  EXPECT_EQ(pool->free_pages(), 4u);
  EXPECT_TRUE(pool->check().ok());
}

TEST_F(sequence_state_test, gives_whole_pages_back_that_hold_nothing_any_more) {
  sequence_state sequence{layout, *pool};
  const std::vector<token_id> tokens(130, 5);
  ASSERT_TRUE(sequence.reserve(130).ok());
  sequence.commit(tokens);
  ASSERT_TRUE(sequence.truncate(128).ok());
  EXPECT_EQ(pool->free_pages(), 3u);
  EXPECT_EQ(sequence.length(), 128);
}

TEST_F(sequence_state_test, takes_back_verify_rows_and_no_more) {
  sequence_state sequence{layout, *pool};
  ASSERT_TRUE(sequence.reserve(100).ok());
  sequence.commit(std::vector<token_id>(100, 5));
  EXPECT_EQ(sequence.truncate(93).error().code, ec::bad_argument);
  EXPECT_TRUE(sequence.truncate(97).ok());
  EXPECT_TRUE(sequence.truncate(94).ok());
  EXPECT_EQ(sequence.truncate(93).error().code, ec::bad_argument)
      << "rows up to 100 lie in the rings";
  EXPECT_EQ(sequence.truncate(101).error().code, ec::bad_argument);
  EXPECT_EQ(sequence.truncate(-1).error().code, ec::bad_argument);
  EXPECT_TRUE(sequence.truncate(0).ok());
  EXPECT_EQ(sequence.length(), 0);
}

TEST_F(sequence_state_test, hashes_what_can_be_read_and_nothing_else) {
  sequence_state sequence{layout, *pool};
  ASSERT_TRUE(sequence.reserve(40).ok());
  sequence.commit(std::vector<token_id>(40, 5));
  const std::uint64_t before = sequence.hash();
  std::memset(sequence.window_row(2, 24), 7, layout.window_row_bytes); // left the window
  EXPECT_EQ(sequence.hash(), before);
  std::memset(sequence.main_row(0, 20), 7, layout.sources[0].main_row_bytes); // not yet complete
  EXPECT_EQ(sequence.hash(), before);
  std::memset(sequence.window_row(2, 25), 7, layout.window_row_bytes);
  const std::uint64_t window = sequence.hash();
  EXPECT_NE(window, before);
  std::memset(sequence.main_row(0, 19), 7, layout.sources[0].main_row_bytes);
  EXPECT_NE(sequence.hash(), window);
}

} // namespace
} // namespace di::engine
