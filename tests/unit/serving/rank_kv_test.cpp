// SPDX-License-Identifier: Apache-2.0
// RANK's KV: what of a sequence may be cached, and when.
#include "actors/rank_kv.hpp"
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

namespace di::test {
namespace {

class rank_kv_test : public ::testing::Test {
protected:
  rank_kv_test() {
    spec.prompt.assign(tokens.begin(), tokens.begin() + 100);
    spec.prefix = proto::prefix_mode::exact;
    EXPECT_EQ(kv.open(1, {&spec, tokens, 100}), 0U);
    EXPECT_TRUE(kv.reserve(1, 200));
    engine.run(kv.state(1), std::span{tokens}.first(130));
  }
  static std::vector<token_id> text() {
    std::vector<token_id> all;
    for (std::size_t i = 0; i < 200; ++i)
      all.push_back(static_cast<token_id>(5 + i * i % 90));
    return all;
  }

  std::unique_ptr<engine::loaded_model> model = testing::load_model(testing::demo_checkpoint());
  testing::test_engine engine{*model, 1, kernels::best_cpu_ops(), 8};
  std::vector<token_id> tokens = text();
  proto::request_spec spec;
  actors::rank_kv kv{engine.layout,
                     *engine.pool,
                     engine::make_prefill_rules(model->spec()),
                     {"contract", engine::page_tokens, std::size_t{64} << 20}};
};

TEST_F(rank_kv_test, caches_pages_but_no_windows_of_a_sequence_that_ends_in_a_step) {
  // It computes its output again, in a chunk: the first layers' windows have moved on already.
  const engine::step_segment chunk{&kv.state(1), 130, std::span{tokens}.subspan(130, 60),
                                   engine::logits_wanted::none};
  const auto state = engine.steps->start({&chunk, 1});
  ASSERT_TRUE(state.ok());
  ASSERT_EQ(*state, engine::step_state::needs_experts);
  const auto refused = kv.state(1).snapshot(128, engine::snapshot_kind::full);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ec::bad_argument);
  kv.ending(1, 130, true);
  EXPECT_EQ(kv.index().pages(), 1U);
  EXPECT_EQ(kv.index().snapshot_bytes(), 0U);
  kv.close(1);
  kv.check();
}

TEST_F(rank_kv_test, caches_windows_of_a_sequence_that_ends_between_steps) {
  kv.ending(1, 130, false);
  EXPECT_EQ(kv.index().pages(), 1U);
  EXPECT_GT(kv.index().snapshot_bytes(), 0U);
  kv.close(1);
  kv.check();
}

} // namespace
} // namespace di::test
