// SPDX-License-Identifier: Apache-2.0
// Load windows: counted per bin, layer and expert, packed and read back.
#include "engine/moe/load_sum.hpp"
#include "engine/moe/load_window.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace di::engine {
namespace {

TEST(load_window, packs_counts_of_all_sizes_and_reads_them_back) {
  std::mt19937_64 random{11};
  for (int round = 0; round < 500; ++round) {
    std::vector<std::uint32_t> counts(random() % 60);
    for (std::uint32_t& n : counts)
      n = random() % 2 ? 0 : static_cast<std::uint32_t>(random()) >> (random() % 32);
    std::string text;
    pack_counts(counts, text);
    std::vector<std::uint32_t> got(counts.size(), 7);
    std::string_view rest = text;
    ASSERT_TRUE(unpack_counts(rest, got)) << "round " << round;
    ASSERT_TRUE(rest.empty());
    ASSERT_EQ(got, counts);
    for (std::size_t cut = 0; cut < text.size(); ++cut) {
      std::string_view part = std::string_view{text}.substr(0, cut);
      ASSERT_FALSE(unpack_counts(part, got)) << "round " << round << " cut at " << cut;
    }
  }
  std::vector<std::uint32_t> two(2);
  for (const std::string_view bad : {std::string_view{"\0\0", 2}, std::string_view{"\0\3", 2},
                                     std::string_view{"\xff\xff\xff\xff\x7f\1", 6}}) {
    std::string_view text = bad;
    EXPECT_FALSE(unpack_counts(text, two));
  }
}

TEST(load_window, counts_rows_by_bin_layer_and_expert) {
  load_window w{{4, 2}};
  const std::vector<std::int32_t> first{0, 2, 2, 1}, second{1, 1};
  std::optional<proto::expert_load> full;
  for (int step = 0; step < 4; ++step) {
    EXPECT_FALSE(full);
    w.add(layer_id{1}, 3, first);
    w.add(layer_id{2}, 3, second);
    if (step == 3)
      w.add(layer_id{3}, 2, std::vector<std::int32_t>{0});
    full = w.end_step();
  }
  ASSERT_TRUE(full);
  EXPECT_EQ(full->window, 1U);
  EXPECT_EQ(full->steps, 4U);
  ASSERT_EQ(full->groups.size(), 2U);
  EXPECT_EQ(full->groups[0].first_layer, 1U);
  EXPECT_EQ(full->groups[0].layers, 2U);
  EXPECT_EQ(full->groups[1].experts, 2U);
  std::vector<std::uint32_t> rows(2 * 2 * 3 + 2 * 1 * 2);
  std::string_view text = full->rows;
  ASSERT_TRUE(unpack_counts(text, std::span{rows}.first(3)));
  ASSERT_TRUE(unpack_counts(text, std::span{rows}.subspan(3, 3)));
  ASSERT_TRUE(unpack_counts(text, std::span{rows}.subspan(6, 3)));
  ASSERT_TRUE(unpack_counts(text, std::span{rows}.subspan(9, 3)));
  ASSERT_TRUE(unpack_counts(text, std::span{rows}.subspan(12, 2)));
  ASSERT_TRUE(unpack_counts(text, std::span{rows}.subspan(14, 2)));
  EXPECT_EQ(rows, (std::vector<std::uint32_t>{2, 2, 4, 0, 4, 0, 2, 2, 4, 0, 4, 0, 0, 0, 1, 0}));
  EXPECT_FALSE(w.end_step()); // the next one begins at zero
  load_window none{{}};
  none.add(layer_id{0}, 3, first);
  EXPECT_FALSE(none.end_step());
}

TEST(load_sum, adds_windows_by_part_layer_and_expert_across_groups) {
  load_sum sum{{{0, 2, 3}, {2, 1, 3}}, 2};
  load_window w{{4, 4}};
  std::optional<proto::expert_load> full;
  for (std::int32_t step = 0; step < 4; ++step) {
    w.add(layer_id{0}, 3, std::vector<std::int32_t>{step % 3});
    w.add(layer_id{1}, 3, std::vector<std::int32_t>{2, 2});
    w.add(layer_id{2}, 3, std::vector<std::int32_t>(static_cast<std::size_t>(step), 1));
    full = w.end_step();
  }
  ASSERT_TRUE(full);
  ASSERT_TRUE(sum.add(*full));
  const auto rows = [&](std::size_t group) {
    const auto all = sum.view(group).rows;
    return std::vector<float>{all.begin(), all.end()};
  };
  // [parts][layers][experts]; steps 0 and 1, then 2 and 3
  EXPECT_EQ(rows(0), (std::vector<float>{1, 1, 0, 0, 0, 4, 1, 0, 1, 0, 0, 4}));
  EXPECT_EQ(rows(1), (std::vector<float>{0, 1, 0, 0, 5, 0}));
  sum.fade();
  EXPECT_EQ(rows(1), (std::vector<float>{0, 0.5F, 0, 0, 2.5F, 0}));
  ASSERT_TRUE(sum.add(*full));
  EXPECT_EQ(rows(1), (std::vector<float>{0, 1.5F, 0, 0, 7.5F, 0}));
  sum.clear();
  EXPECT_EQ(rows(1), std::vector<float>(6, 0));
}

} // namespace
} // namespace di::engine
