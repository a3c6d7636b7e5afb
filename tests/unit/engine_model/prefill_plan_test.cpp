// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the modes: the numbers of the released model, and that a plan never leaves a window
// unmade or starts above what it needs.
#include "engine/model/prefill_plan.hpp"
#include "engine/model/sequence_state.hpp"
#include "engine/model/synthetic.hpp"

#include <gtest/gtest.h>

#include <random>

namespace di::engine {
namespace {

using proto::prefill_mode;
using proto::prefix_mode;

prefill_rules preset_rules(const char* name) {
  return make_prefill_rules(*parse_model_spec(*preset_config(name)));
}

TEST(prefill_plan, has_the_numbers_of_the_released_model) {
  const prefill_rules rules = preset_rules("real");
  EXPECT_EQ(rules.layers, 40);
  EXPECT_EQ(rules.encoder_layers, 21);
  EXPECT_EQ(rules.default_keep(), 140);
  EXPECT_EQ(rules.bounded_tail(), 134);
  const prefill_request compact{1000, prefill_mode::compact, 0, prefix_mode::off};
  EXPECT_EQ(decoder_floor(rules, compact), 860);
  const prefill_request few{1000, prefill_mode::compact, 5, prefix_mode::off};
  EXPECT_EQ(decoder_floor(rules, few), 872) << "a window is kept at least";
}

TEST(prefill_plan, leaves_at_least_a_token_to_an_exact_hit_and_134_to_a_bounded_one) {
  const prefill_rules rules = preset_rules("real");
  const auto limit = [&](std::int64_t prompt, prefix_mode mode) {
    return hit_limit(rules, {prompt, prefill_mode::full, 0, mode});
  };
  EXPECT_EQ(limit(256, prefix_mode::off), 0);
  EXPECT_EQ(limit(256, prefix_mode::exact), 128);
  EXPECT_EQ(limit(257, prefix_mode::exact), 256);
  EXPECT_EQ(limit(256 + 133, prefix_mode::bounded), 0) << "a hit of 128 is all window";
  EXPECT_EQ(limit(256 + 134, prefix_mode::bounded), 256);
}

TEST(prefill_plan, replays_a_halo_of_layers_to_rebuild_times_window_less_one) {
  const prefill_rules rules = preset_rules("real");
  const std::int64_t hit = 8192;
  const prefill_start full = plan_start(rules, 0, hit, 0, 0);
  EXPECT_EQ(hit - full.first_row, 40 * 127 + 1) << "one row more for the draft rings";
  EXPECT_TRUE(full.floors.ramp);
  EXPECT_EQ(full.floors.encoder, full.first_row);
  EXPECT_EQ(full.floors.write, hit);
  const prefill_start compact = plan_start(rules, 9000, hit, 0, 0);
  EXPECT_EQ(hit - compact.first_row, 21 * 127 + 1);
  EXPECT_EQ(compact.floors.decoder, 9000);
  const prefill_start inside = plan_start(rules, 8100, hit, 0, 0);
  EXPECT_EQ(8100 - inside.first_row, 21 * 127 + 1) << "kept rows below the hit are run again";
}

TEST(prefill_plan, starts_at_a_snapshot_where_that_is_less) {
  const prefill_rules rules = preset_rules("real");
  EXPECT_TRUE(plan_start(rules, 0, 8192, 0, 8192).use_snapshot);
  EXPECT_EQ(plan_start(rules, 0, 8192, 0, 8192).first_row, 8192);
  EXPECT_EQ(plan_start(rules, 0, 8192, 0, 4096).first_row, 4096);
  EXPECT_FALSE(plan_start(rules, 0, 8192, 0, 1024).use_snapshot) << "the halo is shorter";
  EXPECT_FALSE(plan_start(rules, 8100, 8192, 0, 8192).use_snapshot)
      << "windows behind the split depend on the floor there";
}

TEST(prefill_plan, reruns_one_window_behind_a_bounded_hit) {
  const prefill_rules rules = preset_rules("real");
  const prefill_start start = plan_start(rules, 0, 1024, 1024, 0);
  EXPECT_EQ(start.first_row, 896);
  EXPECT_EQ(start.floors, (sequence_floors{896, 0, 1024, false}));
  const prefill_start compact = plan_start(rules, 1100, 1024, 1024, 0);
  EXPECT_EQ(compact.floors, (sequence_floors{896, 1100, 1024, false}));
}

/// Whatever the lengths: windows that are read later are made with whole windows below them.
TEST(prefill_plan, makes_every_window_that_later_rows_read) {
  std::mt19937 random{17};
  for (int i = 0; i < 5000; ++i) {
    prefill_rules rules;
    rules.window = 2 + random() % 40;
    rules.layers = 1 + random() % 12;
    rules.encoder_layers = 1 + static_cast<std::int64_t>(random()) % rules.layers;
    rules.draft_layers = random() % 2;
    rules.verify_rows = 1 + random() % 6;
    rules.page_tokens = 8;
    const std::int64_t prompt = 9 + random() % 900;
    const std::int64_t decoder = random() % 2 == 0 ? 0 : 1 + random() % prompt;
    const std::int64_t hit = (prompt - 1) / 8 * 8 - 8 * (random() % 3 == 0 ? 1 : 0);
    const prefill_start s = plan_start(rules, decoder, hit, 0, 0);
    ASSERT_LE(s.first_row, hit) << "case " << i;
    ASSERT_EQ(s.floors.encoder, s.first_row);
    if (!s.floors.ramp) {
      ASSERT_EQ(s.first_row, 0) << "case " << i;
      continue;
    }
    const std::int64_t rebuilt = decoder > 0 ? rules.encoder_layers : rules.layers;
    // Rows whose values are right behind layer l: from first_row + (l + 1) * (window - 1) on.
    const std::int64_t right = s.first_row + rebuilt * (rules.window - 1);
    ASSERT_LE(right, decoder > 0 ? std::min(hit, decoder) : hit) << "case " << i;
    ASSERT_GE(right + 1, decoder > 0 ? std::min(hit, decoder) : hit) << "no more than needed";
  }
}

} // namespace
} // namespace di::engine
