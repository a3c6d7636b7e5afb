// SPDX-License-Identifier: Apache-2.0
// Goal: each step of the choice by hand on small rows, the fast path equal to its slow twin on
// random rows, the distribution right, and every parameter refused by name.
#include "engine/sampling/det_math.hpp"
#include "engine/sampling/sampler.hpp"
#include "engine/sampling/slow_sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace di::engine {
namespace {

const std::vector<token_id> eos{1};
constexpr float off = -std::numeric_limits<float>::infinity();

token_choice pick(const sampling_params& params, const sample_row& row) {
  sample_scratch scratch;
  const sampler s = sampler::make(params, row.logits.size(), eos).value();
  return s.pick(row, scratch).value();
}

sampling_params greedy() {
  sampling_params p;
  p.temperature = 0;
  return p;
}

// Ids that occur over many positions.
std::vector<token_id> support(sampling_params p, const std::vector<float>& logits) {
  std::vector<bool> seen(logits.size());
  for (std::uint32_t position = 0; position < 2000; ++position)
    seen[static_cast<std::size_t>(pick(p, {.logits = logits, .position = position}).id)] = true;
  std::vector<token_id> out;
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i])
      out.push_back(static_cast<token_id>(i));
  return out;
}

using ids = std::vector<token_id>;

TEST(sampler, takes_the_lowest_of_equal_maxima_when_greedy) {
  std::vector<float> row(1000, 0.0F);
  row[700] = row[300] = row[999] = 2.5F;
  EXPECT_EQ(pick(greedy(), {.logits = row}).id, 300);
  sampling_params p = greedy();
  p.logit_bias = {{5, 2.5}}; // a patched token takes part in the tie
  EXPECT_EQ(pick(p, {.logits = row}).id, 5);
  p.logit_bias = {{300, -1.0}};
  EXPECT_EQ(pick(p, {.logits = row}).id, 700);
}

TEST(sampler, keeps_exactly_k_tokens_and_lower_ids_of_equals) {
  sampling_params p;
  p.top_k = 3;
  EXPECT_EQ(support(p, {1, 2, 1, 1, 1.5F}), (ids{0, 1, 4}));
  p.top_k = 1;
  EXPECT_EQ(support(p, {1, 1, 1}), (ids{0}));
  p.top_k = -1;
  EXPECT_EQ(support(p, {1, 1, 1}), (ids{0, 1, 2}));
}

TEST(sampler, includes_the_token_that_crosses_top_p) {
  const std::vector<float> row{std::log(0.5F), std::log(0.25F), std::log(0.125F), std::log(0.125F)};
  sampling_params p;
  p.top_p = 0.49;
  EXPECT_EQ(support(p, row), (ids{0}));
  p.top_p = 0.51;
  EXPECT_EQ(support(p, row), (ids{0, 1}));
  p.top_p = 0.8; // of the equal ones the lower id
  EXPECT_EQ(support(p, row), (ids{0, 1, 2}));
  p.top_p = 1e-12;
  EXPECT_EQ(support(p, row), (ids{0}));
}

TEST(sampler, applies_top_p_to_what_top_k_left) {
  const std::vector<float> row{std::log(0.4F), std::log(0.3F), std::log(0.2F), std::log(0.1F)};
  sampling_params p;
  p.top_k = 2; // renormalised 4/7, 3/7
  p.top_p = 0.56;
  EXPECT_EQ(support(p, row), (ids{0}));
  p.top_p = 0.58;
  EXPECT_EQ(support(p, row), (ids{0, 1}));
}

TEST(sampler, drops_tokens_below_min_p_of_the_maximum) {
  const std::vector<float> row{std::log(0.5F), std::log(0.2F), std::log(0.04F), std::log(0.26F)};
  sampling_params p;
  p.min_p = 0.1;
  EXPECT_EQ(support(p, row), (ids{0, 1, 3}));
  p.min_p = 1;
  EXPECT_EQ(support(p, row), (ids{0}));
}

TEST(sampler, divides_by_the_temperature_after_penalties_and_before_filters) {
  // Scaled to 4 and 2 by T = 0.5, min_p = 0.1 (log -2.3) keeps both; scaled to 8 and 4 it would
  // not.
  sampling_params p;
  p.temperature = 0.5;
  p.min_p = 0.1;
  EXPECT_EQ(support(p, {2, 1, -3}), (ids{0, 1}));
  p.temperature = 0.25;
  EXPECT_EQ(support(p, {2, 1, -3}), (ids{0}));
}

TEST(sampler, penalises_by_the_stated_formulas) {
  token_history history;
  history.add_prompt(ids{0, 1});
  history.push(2);
  history.push(2);
  history.push(1);
  sampling_params p = greedy();
  p.logprobs = 5;
  p.logprobs_values = logprobs_mode::processed_logits;
  p.repetition_penalty = 2;
  p.frequency_penalty = 0.5;
  p.presence_penalty = 0.25;
  p.logit_bias = {{2, 1.0}, {4, -1.0}};
  const std::vector<float> row{4, -4, 3, 1, 1};
  const token_choice c = pick(p, {.logits = row, .output_index = 3, .history = &history});
  // 0: 4/2; 3: untouched; 2: (3+1)/2 - 0.5*2 - 0.25; 4: 1-1; 1: -4*2 - 0.5 - 0.25
  EXPECT_EQ(c.top,
            (std::vector<token_logprob>{{0, 2.0}, {3, 1.0}, {2, 0.75}, {4, 0.0}, {1, -8.75}}));
  const ids pending{3, 3}; // drafts count like output
  EXPECT_EQ(
      pick(p, {.logits = row, .output_index = 5, .history = &history, .pending = pending}).top[3],
      (token_logprob{3, 1.0 / 2 - 0.5 * 2 - 0.25}));
}

TEST(sampler, forgets_a_rejected_draft_completely) {
  token_history history;
  history.add_prompt(ids{7});
  history.push(8);
  history.push(7);
  history.pop(7);
  history.pop(8);
  EXPECT_EQ(history.all().size(), 1U);
  EXPECT_EQ(history.of(7).output, 0U);
}

// A row of a verify block sees drafts as pending; once they are accepted they are history. Same
// choice, same bits.
TEST(sampler, treats_pending_drafts_like_committed_tokens) {
  std::mt19937 random{77};
  sampling_params p;
  p.repetition_penalty = 1.2;
  p.frequency_penalty = 0.3;
  p.presence_penalty = 0.4;
  p.logprobs = 4;
  p.logprobs_values = logprobs_mode::processed_logprobs;
  std::vector<float> row(300);
  for (std::uint32_t round = 0; round < 300; ++round) {
    for (float& x : row)
      x = static_cast<float>(random() % 1000) / 200.0F;
    token_history before, after;
    ids drafts;
    for (std::size_t i = 0; i < 12; ++i) {
      const auto id = static_cast<token_id>(random() % 20);
      if (i < 6)
        before.push(id);
      else
        drafts.push_back(id);
      after.push(id);
    }
    p.seed = round;
    const token_choice a = pick(p, {.logits = row,
                                    .position = round,
                                    .output_index = 12,
                                    .history = &before,
                                    .pending = drafts});
    ASSERT_EQ(a,
              pick(p, {.logits = row, .position = round, .output_index = 12, .history = &after}));
  }
}

TEST(sampler, chooses_only_what_every_mask_allows) {
  const std::vector<float> row{9, 8, 7, 6, 5};
  sampling_params p = greedy();
  p.allowed_token_ids = {{4, 1, 2}};
  EXPECT_EQ(pick(p, {.logits = row}).id, 1);
  p.min_tokens = 2; // 1 ends the text
  EXPECT_EQ(pick(p, {.logits = row, .output_index = 1}).id, 2);
  EXPECT_EQ(pick(p, {.logits = row, .output_index = 2}).id, 1);
  const std::vector<std::uint64_t> mask{0b11000};
  EXPECT_EQ(pick(p, {.logits = row, .mask = mask}).id, 4);
  p.logit_bias = {{0, 100.0}}; // bias does not bring a masked token back
  EXPECT_EQ(pick(p, {.logits = row, .mask = mask}).id, 4);
}

TEST(sampler, refuses_rows_that_leave_nothing_or_hold_nan) {
  sample_scratch scratch;
  const sampler s = sampler::make(greedy(), 3, eos).value();
  std::vector<float> row(3, off);
  EXPECT_EQ(s.pick({.logits = row, .position = 9}, scratch).error().render(),
            "bad_argument: no token is allowed at position 9 (output 0)");
  row[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(s.pick({.logits = row}, scratch).error().code, ec::internal);
  sampling_params biased = greedy(); // a bad value does not hide behind a patch
  biased.logit_bias = {{1, 2.0}};
  row[0] = 1;
  EXPECT_EQ(sampler::make(biased, 3, eos).value().pick({.logits = row}, scratch).error().code,
            ec::internal);
  row.resize(2);
  EXPECT_EQ(s.pick({.logits = row}, scratch).error().code, ec::bad_shape);
}

TEST(sampler, forces_ids_and_still_reports_real_logprobs) {
  sampling_params p = greedy();
  p.forced_ids = {2, 0};
  p.logprobs = 1;
  const std::vector<float> row{0, 0, 0, 0};
  const token_choice c = pick(p, {.logits = row, .output_index = 0});
  EXPECT_EQ(c.id, 2);
  EXPECT_DOUBLE_EQ(*c.logprob, -std::log(4.0));
  EXPECT_EQ(c.top, (std::vector<token_logprob>{{0, -det_log(4.0)}}));
  EXPECT_EQ(pick(p, {.logits = row, .output_index = 1}).id, 0);
}

TEST(sampler, reports_raw_values_before_temperature_and_masks) {
  sampling_params p;
  p.temperature = 0.3;
  p.allowed_token_ids = {{1}};
  p.logprobs = 2;
  const std::vector<float> row{2, 1, 0};
  const token_choice c = pick(p, {.logits = row});
  EXPECT_EQ(c.id, 1);
  const double norm = std::log(std::exp(2.0) + std::exp(1.0) + 1.0);
  EXPECT_NEAR(*c.logprob, 1 - norm, 1e-15);
  EXPECT_EQ(c.top[0].id, 0);
  p.logprobs_values = logprobs_mode::processed_logprobs;
  EXPECT_EQ(*pick(p, {.logits = row}).logprob, 0.0);
  EXPECT_EQ(pick(p, {.logits = row}).top[1].logprob, -std::numeric_limits<double>::infinity());
}

TEST(sampler, gives_each_choice_and_seed_a_text_of_its_own_and_the_same_again) {
  const std::vector<float> row(512, 0.0F);
  const auto text = [&](std::uint64_t seed, std::uint32_t choice) {
    ids out;
    sampling_params p;
    p.seed = seed;
    for (std::uint32_t position = 40; position < 60; ++position)
      out.push_back(pick(p, {.logits = row, .position = position, .choice = choice}).id);
    return out;
  };
  EXPECT_EQ(text(5, 0), text(5, 0));
  EXPECT_NE(text(5, 0), text(5, 1));
  EXPECT_NE(text(5, 1), text(5, 2));
  EXPECT_NE(text(5, 0), text(6, 0));
  EXPECT_NE(text(5, 0), text(5 | 1ULL << 40, 0));
}

// Chi-square over 10^6 draws of 16 tokens; the bound is the 1 - 1e-4 quantile for 15 degrees of
// freedom.
TEST(sampler, draws_from_the_soft_max_distribution) {
  std::vector<float> row(16);
  std::vector<double> probability(16);
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<float>((i * 7) % 16) * 0.3F;
    sum += probability[i] = std::exp(static_cast<double>(row[i]) / 1.3);
  }
  sampling_params p;
  p.temperature = 1.3;
  p.seed = 12345;
  const sampler s = sampler::make(p, row.size(), eos).value();
  sample_scratch scratch;
  constexpr int draws = 1'000'000;
  std::vector<double> count(16);
  for (std::uint32_t i = 0; i < draws; ++i)
    ++count[static_cast<std::size_t>(s.pick({.logits = row, .position = i}, scratch).value().id)];
  double chi = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double expected = draws * probability[i] / sum;
    chi += (count[i] - expected) * (count[i] - expected) / expected;
  }
  EXPECT_LT(chi, 44.26);
  EXPECT_GT(chi, 1.5); // suspiciously even draws would be wrong too
}

// Random rows and parameters: the fast path and the slow twin pick the same token with the same
// logprob bits.
TEST(sampler, equals_its_slow_twin_on_random_rows_and_parameters) {
  std::mt19937 random{20260101};
  const auto chance = [&](unsigned in) { return random() % in == 0; };
  const auto real = [&](double low, double high) {
    return std::uniform_real_distribution<double>{low, high}(random);
  };
  sample_scratch scratch; // reused on purpose: nothing may leak from one row into the next
  for (int round = 0; round < 3000; ++round) {
    const std::size_t vocab = 2 + random() % (chance(4) ? 3000 : 40);
    std::vector<float> row(vocab);
    const double width = real(0.01, 8);
    for (float& x : row)
      x = chance(30)
              ? off
              : static_cast<float>(chance(5) ? std::round(real(-3, 3)) : real(-1, 1) * width);
    row[random() % vocab] = 3.0F;
    const auto any_id = [&] { return static_cast<token_id>(random() % vocab); };
    sampling_params p;
    p.temperature = chance(5) ? 0 : real(0.05, 2);
    p.top_p = chance(2) ? 1 : real(0.01, 1);
    p.top_k = chance(2) ? 0 : static_cast<std::int32_t>(1 + random() % (vocab + 2));
    p.min_p = chance(2) ? 0 : real(0, 0.5);
    p.repetition_penalty = chance(2) ? 1 : real(0.5, 2);
    p.frequency_penalty = chance(2) ? 0 : real(-2, 2);
    p.presence_penalty = chance(2) ? 0 : real(-2, 2);
    p.seed = random();
    if (chance(3))
      p.logit_bias = {{0, real(-9, 9)}, {static_cast<token_id>(vocab - 1), real(-9, 9)}};
    if (chance(4))
      p.allowed_token_ids = ids{any_id(), any_id(), any_id()};
    if (chance(2))
      p.logprobs = static_cast<std::int32_t>(random() % 21);
    p.logprobs_values = static_cast<logprobs_mode>(random() % 4);
    p.min_tokens = random() % 2;
    if (chance(8))
      p.forced_ids = {any_id()};
    token_history history;
    for (unsigned i = 0; i < 6; ++i)
      chance(2) ? history.push(any_id()) : history.add_prompt(ids{any_id()});
    const ids pending{any_id(), any_id(), any_id()};
    std::vector<std::uint64_t> mask((vocab + 63) / 64, ~0ULL);
    mask[0] ^= random() & 0xFF;
    const sample_row r{.logits = row,
                       .position = static_cast<std::uint32_t>(random()),
                       .choice = static_cast<std::uint32_t>(random() % 4),
                       .output_index = static_cast<std::uint32_t>(random() % 3),
                       .history = &history,
                       .pending = chance(2) ? std::span<const token_id>{pending}
                                            : std::span<const token_id>{},
                       .mask = chance(3) ? std::span<const std::uint64_t>{mask}
                                         : std::span<const std::uint64_t>{}};
    const auto fast = sampler::make(p, vocab, eos).value().pick(r, scratch);
    const auto slow = pick_slowly(p, eos, r);
    ASSERT_EQ(fast.ok(), slow.ok()) << round;
    if (fast.ok()) {
      ASSERT_EQ(fast->id, slow->id) << round;
      ASSERT_EQ(fast->logprob, slow->logprob) << round;
      ASSERT_EQ(fast->top, slow->top) << round;
    }
  }
}

TEST(sampling_params, names_every_field_that_is_out_of_range) {
  struct wrong {
    const char* text;
    std::function<void(sampling_params&)> change;
  };
  const double nan = std::nan("");
  const std::vector<wrong> all{
      {"temperature: 2.5 lies outside [0, 2]", [](auto& p) { p.temperature = 2.5; }},
      {"temperature: nan lies outside [0, 2]", [&](auto& p) { p.temperature = nan; }},
      {"top_p: 0 lies outside (0, 1]", [](auto& p) { p.top_p = 0; }},
      {"top_k: -2 is below -1", [](auto& p) { p.top_k = -2; }},
      {"min_p: 1.5 lies outside [0, 1]", [](auto& p) { p.min_p = 1.5; }},
      {"presence_penalty: 3 lies outside [-2, 2]", [](auto& p) { p.presence_penalty = 3; }},
      {"frequency_penalty: -3 lies outside [-2, 2]", [](auto& p) { p.frequency_penalty = -3; }},
      {"repetition_penalty: 0 lies outside (0, 100]", [](auto& p) { p.repetition_penalty = 0; }},
      {"logit_bias[3]: 101 lies outside [-100, 100]",
       [](auto& p) {
         p.logit_bias = {{3, 101}};
       }},
      {"logit_bias[0]: token id 10 lies outside [0, 10)",
       [](auto& p) {
         p.logit_bias = {{10, 1}};
       }},
      {"logit_bias: token id 3 is given twice",
       [](auto& p) {
         p.logit_bias = {{3, 1}, {3, 2}};
       }},
      {"logprobs: 21 lies outside [0, 20]", [](auto& p) { p.logprobs = 21; }},
      {"n: 0 lies outside [1, 128]", [](auto& p) { p.n = 0; }},
      {"max_tokens: 0, at least 1", [](auto& p) { p.max_tokens = 0; }},
      {"min_tokens: 17 is above max_tokens 16", [](auto& p) { p.min_tokens = 17; }},
      {"stop_token_ids[1]: token id -1 lies outside [0, 10)",
       [](auto& p) {
         p.stop_token_ids = {1, -1};
       }},
      {"stop: 65 strings, at most 64", [](auto& p) { p.stop.assign(65, "x"); }},
      {"stop[1]: is empty",
       [](auto& p) {
         p.stop = {"a", ""};
       }},
      {"stop[0]: 1025 bytes, at most 1024", [](auto& p) { p.stop = {std::string(1025, 'x')}; }},
      {"stop[0]: is not UTF-8 at byte 1", [](auto& p) { p.stop = {"a\xFF"}; }},
      {"allowed_token_ids: is empty, no token could be chosen",
       [](auto& p) { p.allowed_token_ids.emplace(); }},
      {"allowed_token_ids[0]: token id 99 lies outside [0, 10)",
       [](auto& p) { p.allowed_token_ids = {{99}}; }},
      {"forced_ids[0]: token id 10 lies outside [0, 10)", [](auto& p) { p.forced_ids = {10}; }},
  };
  EXPECT_TRUE(sampling_params{}.validate(10).ok());
  for (const wrong& w : all) {
    sampling_params p;
    w.change(p);
    ASSERT_FALSE(p.validate(10).ok()) << w.text;
    EXPECT_EQ(p.validate(10).error().what, w.text);
  }
}

} // namespace
} // namespace di::engine
