// SPDX-License-Identifier: Apache-2.0
// The bit contract of whole steps: what a sequence yields depends on its own tokens only, not on
// chunk sizes, batch mates, rows taken back, threads, instruction set or who computes the experts.
// Method: one plain run is the truth; every other way must give the same logits, bit for bit, and
// leave the same state.
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace di::engine {
namespace {

using di::testing::test_engine;

std::vector<token_id> random_tokens(std::uint32_t seed, std::size_t count, std::int64_t vocab) {
  std::mt19937 random{seed};
  std::vector<token_id> tokens(count);
  for (token_id& t : tokens)
    t = static_cast<token_id>(random() % static_cast<std::uint32_t>(vocab));
  return tokens;
}

/// Same bits, also for the sign of zero; reports the first row that differs.
void expect_same_rows(std::span<const float> expected, std::span<const float> found,
                      std::size_t vocab, const std::string& what) {
  ASSERT_EQ(expected.size(), found.size()) << what;
  for (std::size_t r = 0; r * vocab < expected.size(); ++r)
    ASSERT_EQ(0, std::memcmp(expected.data() + r * vocab, found.data() + r * vocab,
                             vocab * sizeof(float)))
        << what << ": row " << r << " differs";
}

/// What one sequence yields: logits of all rows and the state afterwards.
struct outcome {
  std::vector<float> logits;
  std::uint64_t state = 0;
};

/// Runs tokens in chunks of the given sizes, repeated.
outcome run_chunks(test_engine& engine, std::span<const token_id> tokens,
                   std::vector<std::size_t> sizes) {
  const auto sequence = engine.sequence();
  outcome out;
  for (std::size_t at = 0, k = 0; at < tokens.size(); ++k) {
    const std::size_t rows = std::min(sizes[k % sizes.size()], tokens.size() - at);
    const auto logits = engine.run(*sequence, tokens.subspan(at, rows));
    out.logits.insert(out.logits.end(), logits.begin(), logits.end());
    at += rows;
  }
  out.state = sequence->hash();
  return out;
}

class bit_contract : public ::testing::TestWithParam<const char*> {
protected:
  bit_contract()
      : model{di::testing::load_model(std::string{GetParam()} == "demo"
                                          ? di::testing::demo_checkpoint()
                                          : di::testing::preset_checkpoint(GetParam()))},
        vocab{static_cast<std::size_t>(model->spec().vocab_size)},
        tokens{random_tokens(11, 150, model->spec().vocab_size)} {}

  void expect_same(const outcome& expected, const outcome& found, const std::string& what) {
    expect_same_rows(expected.logits, found.logits, vocab, what);
    EXPECT_EQ(expected.state, found.state) << what << ": state differs";
  }

  std::unique_ptr<loaded_model> model;
  std::size_t vocab;
  std::vector<token_id> tokens;
};

TEST_P(bit_contract, chunks_of_any_size_equal_one_prefill) {
  test_engine engine{*model};
  const outcome whole = run_chunks(engine, tokens, {tokens.size()});
  expect_same(whole, run_chunks(engine, tokens, {1}), "chunks of 1");
  expect_same(whole, run_chunks(engine, tokens, {7}), "chunks of 7");
  expect_same(whole, run_chunks(engine, tokens, {64}), "chunks of 64");
  expect_same(whole, run_chunks(engine, tokens, {3, 1, 40, 2, 17}), "mixed chunks");
}

TEST_P(bit_contract, batch_mates_do_not_show) {
  test_engine engine{*model};
  constexpr std::size_t count = 4;
  std::vector<std::vector<token_id>> texts;
  std::vector<outcome> alone;
  for (std::uint32_t i = 0; i < count; ++i) {
    texts.push_back(random_tokens(20 + i, 30 + 25 * i, model->spec().vocab_size));
    alone.push_back(run_chunks(engine, texts.back(), {texts.back().size()}));
  }
  std::mt19937 random{5};
  std::vector<std::unique_ptr<sequence_state>> sequences;
  std::vector<outcome> together(count);
  for (std::size_t i = 0; i < count; ++i)
    sequences.push_back(engine.sequence());
  for (bool more = true; more;) {
    more = false;
    std::vector<step_segment> segments;
    std::vector<std::size_t> who;
    for (std::size_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(sequences[i]->length());
      const std::size_t left = texts[i].size() - at;
      more = more || left > 0;
      if (left == 0 || random() % 4 == 0)
        continue;
      step_segment segment;
      segment.sequence = sequences[i].get();
      segment.first_position = static_cast<std::uint32_t>(at);
      segment.tokens =
          std::span{texts[i]}.subspan(at, std::min<std::size_t>(left, 1 + random() % 20));
      segment.logits = logits_wanted::all;
      segments.push_back(segment);
      who.push_back(i);
    }
    if (segments.empty())
      continue;
    std::shuffle(segments.begin(), segments.end(), std::mt19937{random()});
    ASSERT_TRUE(engine.loop.run(segments).ok());
    for (std::size_t s = 0; s < segments.size(); ++s)
      for (std::size_t i = 0; i < count; ++i)
        if (segments[s].sequence == sequences[i].get()) {
          const auto logits = engine.steps->logits(s);
          together[i].logits.insert(together[i].logits.end(), logits.begin(), logits.end());
        }
  }
  for (std::size_t i = 0; i < count; ++i) {
    together[i].state = sequences[i]->hash();
    expect_same(alone[i], together[i], "sequence " + std::to_string(i));
  }
}

TEST_P(bit_contract, rows_taken_back_leave_no_trace) {
  test_engine engine{*model};
  const outcome plain = run_chunks(engine, tokens, {tokens.size()});
  std::mt19937 random{9};
  const auto sequence = engine.sequence();
  outcome drafted;
  while (static_cast<std::size_t>(sequence->length()) < tokens.size()) {
    const auto at = static_cast<std::size_t>(sequence->length());
    const std::size_t left = tokens.size() - at;
    // One certain row and up to five drafts, of which some are right and the rest is taken back.
    const std::size_t right = std::min<std::size_t>(left, 1 + random() % 6);
    const std::size_t wrong = random() % (7 - right);
    std::vector<token_id> rows{tokens.begin() + static_cast<std::ptrdiff_t>(at),
                               tokens.begin() + static_cast<std::ptrdiff_t>(at + right)};
    for (std::size_t i = 0; i < wrong; ++i)
      rows.push_back(static_cast<token_id>(random() % vocab));
    const auto logits = engine.run(*sequence, rows);
    ASSERT_TRUE(sequence->truncate(static_cast<std::int64_t>(at + right)).ok());
    drafted.logits.insert(drafted.logits.end(), logits.begin(),
                          logits.begin() + static_cast<std::ptrdiff_t>(right * vocab));
  }
  drafted.state = sequence->hash();
  expect_same(plain, drafted, "with drafts");
  EXPECT_TRUE(engine.pool->check(sequence->pages()).ok());
}

TEST_P(bit_contract, threads_do_not_show) {
  test_engine one{*model, 1};
  const auto expected = run_chunks(one, tokens, {100, 1});
  for (const unsigned threads : {2u, 3u}) {
    test_engine engine{*model, threads};
    expect_same(expected, run_chunks(engine, tokens, {100, 1}),
                std::to_string(threads) + " threads");
  }
}

TEST_P(bit_contract, instruction_sets_do_not_show) {
  test_engine reference{*model, 1, kernels::ref_ops()};
  const auto some = std::span{tokens}.first(60);
  const auto expected = run_chunks(reference, some, {50, 1});
  for (const auto level : {kernels::isa::portable, kernels::isa::avx2, kernels::isa::avx512}) {
    if (!kernels::isa_available(level))
      continue;
    test_engine engine{*model, 2, kernels::cpu_ops(level)};
    expect_same(expected, run_chunks(engine, some, {50, 1}), kernels::cpu_ops(level).name);
  }
}

/// Answers every demand with several shards: experts dealt out, calls cut and out of order.
TEST_P(bit_contract, it_does_not_matter_who_computes_an_expert) {
  test_engine engine{*model};
  const auto some = std::span{tokens}.first(70);
  const outcome expected = run_chunks(engine, some, {some.size()});
  for (const std::size_t shards : {2u, 3u, 8u}) {
    std::vector<std::unique_ptr<kernels::stream>> streams;
    std::vector<std::unique_ptr<expert_runner>> runners;
    for (std::size_t s = 0; s < shards; ++s) {
      streams.push_back(kernels::make_cpu_stream(1));
      runners.push_back(make_expert_runner(*model, engine.ops, *streams.back()));
    }
    const auto sequence = engine.sequence();
    step_segment segment;
    segment.sequence = sequence.get();
    segment.tokens = some;
    segment.logits = logits_wanted::all;
    auto state = engine.steps->start({&segment, 1});
    ASSERT_TRUE(state.ok());
    while (*state == step_state::needs_experts) {
      std::vector<expert_job> jobs;
      jobs.resize(group_by_expert(engine.steps->demand(), jobs));
      for (std::size_t s = shards; s-- > 0;) {
        std::vector<expert_job> mine;
        for (expert_job& job : jobs)
          if (job.expert.v % shards == s)
            mine.insert(mine.begin(), job);
        const std::size_t half = mine.size() / 2;
        ASSERT_TRUE(runners[s]->run(std::span{mine}.subspan(half)).ok());
        ASSERT_TRUE(runners[s]->run(std::span{mine}.first(half)).ok());
      }
      ASSERT_TRUE(engine.steps->work_while_waiting().ok());
      state = engine.steps->resume();
      ASSERT_TRUE(state.ok());
    }
    const auto logits = engine.steps->logits(0);
    expect_same(expected, {{logits.begin(), logits.end()}, sequence->hash()},
                std::to_string(shards) + " shards");
  }
}

INSTANTIATE_TEST_SUITE_P(models, bit_contract, ::testing::Values("tiny", "demo"),
                         [](const auto& model) { return std::string{model.param}; });

} // namespace
} // namespace di::engine
