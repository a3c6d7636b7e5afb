// SPDX-License-Identifier: Apache-2.0
// The doors of steps and expert runners: what they refuse, and that nothing has changed then.
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

class step_test : public ::testing::Test {
protected:
  static void SetUpTestSuite() {
    model = di::testing::load_model(di::testing::preset_checkpoint("tiny"));
  }
  static void TearDownTestSuite() { model.reset(); }

  step_segment segment(sequence_state& sequence, std::span<const token_id> rows) {
    step_segment s;
    s.sequence = &sequence;
    s.first_position = static_cast<std::uint32_t>(sequence.length());
    s.tokens = rows;
    return s;
  }
  ec refusal(std::span<const step_segment> segments) {
    const auto state = engine.steps->start(segments);
    return state.ok() ? ec::ok : state.error().code;
  }

  static std::unique_ptr<loaded_model> model;
  di::testing::test_engine engine{*model, 1, kernels::best_cpu_ops(), 40};
  std::vector<token_id> tokens = std::vector<token_id>(8, 3);
};

std::unique_ptr<loaded_model> step_test::model;

TEST_F(step_test, refuses_an_empty_step_and_an_empty_segment) {
  EXPECT_EQ(refusal({}), ec::bad_argument);
  const auto sequence = engine.sequence();
  const step_segment empty = segment(*sequence, {});
  EXPECT_EQ(refusal({&empty, 1}), ec::bad_argument);
}

TEST_F(step_test, refuses_a_gap_in_positions) {
  const auto sequence = engine.sequence();
  step_segment s = segment(*sequence, tokens);
  s.first_position = 1;
  EXPECT_EQ(refusal({&s, 1}), ec::bad_argument);
}

TEST_F(step_test, refuses_one_sequence_twice) {
  const auto sequence = engine.sequence();
  const std::array twice{segment(*sequence, tokens), segment(*sequence, tokens)};
  EXPECT_EQ(refusal(twice), ec::bad_argument);
}

TEST_F(step_test, refuses_tokens_outside_the_vocabulary) {
  const auto sequence = engine.sequence();
  for (const token_id bad : {-1, static_cast<int>(model->spec().vocab_size)}) {
    const std::array rows{token_id{1}, bad};
    const step_segment s = segment(*sequence, rows);
    EXPECT_EQ(refusal({&s, 1}), ec::bad_argument);
  }
}

TEST_F(step_test, refuses_positions_beyond_the_context_by_name) {
  const auto sequence = engine.sequence();
  const std::vector<token_id> many(
      static_cast<std::size_t>(model->spec().max_position_embeddings) + 1, 3);
  const step_segment s = segment(*sequence, many);
  EXPECT_EQ(refusal({&s, 1}), ec::context_exceeded);
}

TEST_F(step_test, refuses_more_than_the_pool_holds_and_works_on) {
  di::testing::test_engine small{*model, 1, kernels::best_cpu_ops(), 1};
  const auto sequence = small.sequence();
  const std::vector<token_id> many(static_cast<std::size_t>(page_tokens) + 1, 3);
  const step_segment too_long = segment(*sequence, many);
  const auto refused = small.steps->start({&too_long, 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ec::kv_exhausted);
  EXPECT_EQ(sequence->length(), 0);
  EXPECT_EQ(small.run(*sequence, tokens).size(), tokens.size() * 1024);
}

TEST_F(step_test, resumes_only_what_waits) {
  EXPECT_FALSE(engine.steps->resume().ok());
  const auto sequence = engine.sequence();
  engine.run(*sequence, tokens);
  EXPECT_FALSE(engine.steps->resume().ok());
}

TEST_F(step_test, gives_only_the_logits_that_are_wanted) {
  const auto a = engine.sequence();
  const auto b = engine.sequence();
  const auto c = engine.sequence();
  std::array segments{segment(*a, tokens), segment(*b, tokens), segment(*c, tokens)};
  segments[0].logits = logits_wanted::none;
  segments[1].logits = logits_wanted::all;
  ASSERT_TRUE(engine.loop.run(segments).ok());
  EXPECT_EQ(engine.steps->logits(0).size(), 0u);
  EXPECT_EQ(engine.steps->logits(1).size(), 8u * 1024u);
  const auto last = engine.steps->logits(2);
  ASSERT_EQ(last.size(), 1024u);
  const auto all = engine.steps->logits(1).last(1024);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), all.begin()));
}

TEST_F(step_test, asks_for_experts_in_ascending_order) {
  const auto sequence = engine.sequence();
  const step_segment s = segment(*sequence, tokens);
  ASSERT_TRUE(engine.steps->start({&s, 1}).ok());
  const expert_demand& demand = engine.steps->demand();
  EXPECT_EQ(demand.rows, 8u);
  EXPECT_EQ(demand.answers.size(), 8u * 4u * 256u);
  for (std::size_t i = 0; i < demand.experts.size(); ++i)
    if (i % demand.experts_per_token != 0) {
      EXPECT_LT(demand.experts[i - 1], demand.experts[i]);
    }
}

TEST_F(step_test, an_expert_runner_refuses_what_the_model_does_not_have) {
  std::vector<expert_job> jobs(1);
  jobs[0].layer = layer_id{99};
  EXPECT_EQ(engine.experts->run(jobs).error().code, ec::bad_argument);
  jobs[0].layer = layer_id{0};
  jobs[0].expert = expert_id{16};
  EXPECT_EQ(engine.experts->run(jobs).error().code, ec::bad_argument);
  jobs[0].expert = expert_id{3};
  jobs[0].codes.push_back(nullptr); // one row, but neither scale nor weight nor place
  EXPECT_EQ(engine.experts->run(jobs).error().code, ec::bad_argument);
  EXPECT_TRUE(engine.experts->run({}).ok());
}

TEST_F(step_test, taps_the_layers_that_drafts_will_read) {
  const auto sequence = engine.sequence();
  engine.run(*sequence, tokens);
  EXPECT_TRUE(engine.steps->taps(0).empty());
  engine.steps->want_taps(true);
  const auto again = engine.sequence();
  engine.run(*again, tokens);
  EXPECT_EQ(engine.steps->taps(0).size(), 8u * 2u * 256u);
}

} // namespace
} // namespace di::engine
