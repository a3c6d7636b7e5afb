// SPDX-License-Identifier: Apache-2.0
// Placements: the default for any rank count, look-ups, and what is refused.
#include "engine/moe/placement.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace di::engine {
namespace {

std::vector<placed_rank> some_ranks(std::uint32_t n) {
  std::vector<placed_rank> ranks;
  for (std::uint32_t i = 0; i < n; ++i)
    ranks.push_back({rank_id{i * 2}, incarnation{100 + i}});
  return ranks;
}

TEST(placement, holds_every_expert_at_any_rank_count) {
  std::mt19937 random{7};
  for (int round = 0; round < 1000; ++round) {
    const std::uint32_t experts = 1 + static_cast<std::uint32_t>(random() % 70);
    const std::uint32_t ranks = 1 + static_cast<std::uint32_t>(random() % 70);
    const std::uint32_t redundant = static_cast<std::uint32_t>(random() % 40);
    const std::vector<expert_layers> groups{{0, 5, experts}, {5, 2, experts / 2 + 1}};
    auto made = placement::contiguous(groups, some_ranks(ranks), redundant, epoch{3}, epoch{2});
    ASSERT_TRUE(made) << made.error().render();
    for (std::uint32_t layer : {0U, 4U, 5U, 6U}) {
      const std::uint32_t of_layer = made->experts(layer_id{layer});
      ASSERT_EQ(made->held(0, layer_id{layer}).size(), slots_per_rank(of_layer, redundant, ranks));
      for (std::uint32_t e = 0; e < of_layer; ++e) {
        const auto holders = made->holders(layer_id{layer}, e);
        ASSERT_FALSE(holders.empty());
        for (std::uint32_t caller = 0; caller < ranks; ++caller) {
          const std::size_t server = made->serving(caller, layer_id{layer}, e, random());
          ASSERT_TRUE(made->holds(server, layer_id{layer}, e));
          if (holders.size() == ranks) {
            ASSERT_EQ(server, caller);
          }
          const auto held = made->held(server, layer_id{layer});
          ASSERT_EQ(std::count(held.begin(), held.end(), e), 1);
        }
      }
    }
  }
}

TEST(placement, spreads_the_rows_of_callers_evenly_over_holders) {
  const std::vector<expert_layers> groups{{0, 1, 12}};
  for (const std::uint32_t ranks : {5U, 8U, 24U}) {
    auto made = placement::contiguous(groups, some_ranks(ranks), 20, epoch{1}, epoch{1});
    ASSERT_TRUE(made);
    for (std::uint32_t e = 0; e < 12; ++e) {
      const auto holders = made->holders(layer_id{0}, e);
      std::map<std::size_t, std::uint32_t> rows;
      for (std::uint32_t caller = 0; caller < ranks; ++caller) {
        std::map<std::size_t, std::uint32_t> own;
        for (std::uint64_t turn = 0; turn < 7; ++turn)
          ++own[made->serving(caller, layer_id{0}, e, turn)];
        for (const auto& [who, n] : own) {
          rows[who] += n;
          ASSERT_LE(n, 7 / holders.size() + 1);
        }
      }
      // Callers begin at different holders: what is left over spreads too.
      const std::uint32_t even = 7 * ranks / static_cast<std::uint32_t>(holders.size());
      for (const std::uint32_t who : holders) {
        ASSERT_GE(rows[who] + holders.size(), even) << "expert " << e;
        ASSERT_LE(rows[who], even + holders.size()) << "expert " << e;
      }
    }
  }
}

TEST(placement, follows_the_slot_rule) {
  EXPECT_EQ(slots_per_rank(384, 64, 64), 7U);
  EXPECT_EQ(slots_per_rank(8, 0, 1), 8U);
  EXPECT_EQ(slots_per_rank(8, 64, 1), 8U);
  EXPECT_EQ(slots_per_rank(8, 0, 7), 2U);
  EXPECT_EQ(slots_per_rank(8, 0, 64), 1U);
}

TEST(placement, says_what_it_does_not_know) {
  const std::vector<expert_layers> groups{{2, 1, 4}};
  auto made = placement::contiguous(groups, some_ranks(2), 0, epoch{1}, epoch{1});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->experts(layer_id{1}), 0U);
  EXPECT_TRUE(made->holders(layer_id{2}, 4).empty());
  EXPECT_TRUE(made->holders(layer_id{3}, 0).empty());
  EXPECT_FALSE(made->holds(0, layer_id{2}, 3));
  EXPECT_EQ(made->index_of(rank_id{2}), 1U);
  EXPECT_EQ(made->index_of(rank_id{1}), std::nullopt);
}

TEST(placement, survives_publishing) {
  const std::vector<expert_layers> groups{{0, 3, 8}};
  auto made = placement::contiguous(groups, some_ranks(3), 2, epoch{9}, epoch{4});
  ASSERT_TRUE(made);
  auto read = placement::from(made->published());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->version(), epoch{9});
  EXPECT_EQ(read->view(), epoch{4});
  EXPECT_EQ(read->rank_at(2), (placed_rank{rank_id{4}, incarnation{102}}));
  EXPECT_EQ(read->held(1, layer_id{2})[0], made->held(1, layer_id{2})[0]);
}

TEST(placement, refuses_what_cannot_serve) {
  const std::vector<expert_layers> groups{{0, 3, 4}};
  auto made = placement::contiguous(groups, some_ranks(2), 0, epoch{1}, epoch{1});
  ASSERT_TRUE(made);
  const proto::placement_published good = made->published();
  const auto code = [](const proto::placement_published& m) {
    auto read = placement::from(m);
    return read ? ec::ok : read.error().code;
  };
  EXPECT_EQ(code(good), ec::ok);
  auto bad = good;
  bad.groups[0].expert_of_slot[3] = 2; // held twice by the second rank, and 3 by nobody
  EXPECT_EQ(code(bad), ec::not_found);
  bad = good;
  bad.groups[0].expert_of_slot.pop_back();
  EXPECT_EQ(code(bad), ec::bad_shape);
  bad = good;
  bad.groups[0].expert_of_slot[0] = 4;
  EXPECT_EQ(code(bad), ec::bad_argument);
  bad = good;
  bad.groups.push_back(bad.groups[0]);
  EXPECT_EQ(code(bad), ec::duplicate);
  bad = good;
  std::swap(bad.ranks[0], bad.ranks[1]);
  EXPECT_EQ(code(bad), ec::bad_argument);
  bad = good;
  bad.lives.pop_back();
  EXPECT_EQ(code(bad), ec::bad_shape);
  bad = good;
  bad.ranks.clear();
  EXPECT_EQ(code(bad), ec::limit_exceeded);
  bad = good;
  bad.groups[0].slots = 3;
  bad.groups[0].expert_of_slot = {0, 1, 1, 2, 3, 0};
  EXPECT_EQ(code(bad), ec::duplicate);
  EXPECT_FALSE(placement::contiguous(groups, {}, 0, epoch{1}, epoch{1}));
}

} // namespace
} // namespace di::engine
