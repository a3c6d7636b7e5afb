// SPDX-License-Identifier: Apache-2.0
// Timed dummy steps: what is measured within a budget, and that nothing stays behind.
#include "engine/model/step_profile.hpp"
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

struct hand_clock final : env {
  instant now() const override { return at; }
  std::uint64_t random() override { return 4; }
  instant at{};
};

duration ms(double n) {
  return duration{static_cast<std::int64_t>(n * 1e6)};
}

/// Steps that take a millisecond and one more per row; every third one is disturbed.
class slow_steps final : public step_runner {
public:
  explicit slow_steps(hand_clock& clock) : clock_{clock} {}
  result<step_state> start(std::span<const step_segment> segments) override {
    const auto rows = static_cast<double>(segments[0].tokens.size());
    clock_.at = clock_.at + ms(first_ms + 1 + rows + (++steps % 3 == 0 ? noise_ms : 0));
    first_ms = 0;
    most = std::max(most, segments[0].tokens.size());
    return step_state::done;
  }
  const expert_demand& demand() const override { return none_; }
  result<step_state> resume() override { return step_state::done; }
  std::span<const float> logits(std::size_t) const override { return {}; }

  std::size_t steps = 0, most = 0;
  double noise_ms = 0, first_ms = 0;

private:
  hand_clock& clock_;
  expert_demand none_;
};

struct no_experts final : expert_runner {
  result<void> run(std::span<expert_job>) override { return {}; }
};

struct fixture {
  explicit fixture(double budget_ms, std::uint32_t rows_max = 100) {
    options.budget = ms(budget_ms);
    options.rows_max = rows_max;
    options.vocab = 50;
    layout.page_bytes = 64;
    pool = page_pool::create(64, 2).value();
  }
  step_profile run() {
    return profile_steps(options, steps, nullptr, experts, layout, *pool, clock).value();
  }
  profile_options options;
  hand_clock clock;
  slow_steps steps{clock};
  no_experts experts;
  kv_layout layout;
  std::unique_ptr<page_pool> pool;
};

std::vector<std::uint32_t> sizes(const std::vector<sized_time>& table) {
  std::vector<std::uint32_t> out;
  for (const sized_time& t : table)
    out.push_back(t.size);
  return out;
}

TEST(step_profile, takes_doubling_sizes_up_to_the_largest_step) {
  fixture f{100'000};
  const step_profile got = f.run();
  EXPECT_EQ(sizes(got.steps), (std::vector<std::uint32_t>{1, 2, 4, 8, 16, 32, 64, 100}));
  EXPECT_EQ(f.steps.steps, 1U + 8 * 5);
  for (const sized_time& t : got.steps)
    EXPECT_EQ(t.ms, 1 + t.size);
  EXPECT_TRUE(got.drafts.empty());
}

TEST(step_profile, takes_medians_of_disturbed_steps) {
  fixture f{100'000};
  f.steps.noise_ms = 500;
  for (const sized_time& t : f.run().steps)
    EXPECT_EQ(t.ms, 1 + t.size);
}

TEST(step_profile, keeps_within_its_budget) {
  for (double budget = 4; budget < 600; budget += 1) {
    SCOPED_TRACE(budget);
    fixture f{budget};
    const step_profile got = f.run();
    EXPECT_LE(f.clock.at, instant{} + ms(budget));
    EXPECT_FALSE(got.steps.empty());
    if (budget >= 100) {
      EXPECT_GE(got.steps.size(), 5U);
    }
  }
}

TEST(step_profile, ends_after_a_first_step_that_took_it_all) {
  fixture f{40};
  f.steps.first_ms = 50;
  EXPECT_TRUE(f.run().steps.empty());
  EXPECT_EQ(f.steps.steps, 1U);
  fixture off{0};
  EXPECT_TRUE(off.run().steps.empty());
  EXPECT_EQ(off.steps.steps, 0U);
}

TEST(step_profile, never_falls_with_size) {
  fixture f{100'000, 16};
  f.options.replays = 1; // the third and the sixth step are those of 2 and 16 rows
  f.steps.noise_ms = 4;
  std::vector<double> got;
  for (const sized_time& t : f.run().steps)
    got.push_back(t.ms);
  EXPECT_EQ(got, (std::vector<double>{2, 5, 5, 9, 21}));
}

TEST(step_profile, of_a_model_leaves_pool_and_answers_as_they_were) {
  const auto model = testing::load_model(testing::demo_checkpoint());
  testing::test_engine engine{*model};
  const auto drafts = make_draft_runner(*model, engine.ops, *engine.stream);
  const std::vector<token_id> prompt{5, 9, 40, 7, 60, 21};
  const auto before = engine.sequence();
  const std::vector<float> want = engine.run(*before, prompt);
  const std::uint32_t free = engine.pool->free_pages();
  profile_options options;
  options.budget = std::chrono::minutes{1};
  options.rows_max = 12;
  options.sequences_max = 3;
  options.replays = 2;
  options.vocab = static_cast<token_id>(model->spec().vocab_size);
  const auto got = profile_steps(options, *engine.steps, drafts.get(), *engine.experts,
                                 engine.layout, *engine.pool, real_env());
  ASSERT_TRUE(got.ok()) << got.error().render();
  EXPECT_EQ(sizes(got->steps), (std::vector<std::uint32_t>{1, 2, 4, 8, 12}));
  EXPECT_EQ(sizes(got->drafts), (std::vector<std::uint32_t>{1, 2, 3}));
  for (const auto* table : {&got->steps, &got->drafts})
    for (std::size_t i = 0; i < table->size(); ++i) {
      EXPECT_GT((*table)[i].ms, 0);
      EXPECT_GE((*table)[i].ms, (*table)[i == 0 ? 0 : i - 1].ms);
    }
  EXPECT_EQ(engine.pool->free_pages(), free);
  EXPECT_TRUE(engine.pool->check(before->pages()).ok());
  const auto after = engine.sequence();
  EXPECT_EQ(engine.run(*after, prompt), want);
  EXPECT_EQ(after->hash(), before->hash());
}

} // namespace
} // namespace di::engine
