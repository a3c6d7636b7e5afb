// SPDX-License-Identifier: Apache-2.0
// Sample-then-match: the output never shows the drafts, and drawn tokens follow the target's
// distribution whatever decides how many drafts are verified.
#include "engine/core/speculation.hpp"
#include "engine/core/text_sampler.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>

namespace di::engine {
namespace {

constexpr std::size_t vocab = 64;

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15U + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 29)) * 0x94D049BB133111EBU;
  return x ^ (x >> 32);
}

/// A model whose logits are a hash of everything before, so that any mix-up shows at once.
std::vector<float> logits_behind(std::span<const token_id> tokens) {
  std::uint64_t state = 7;
  for (const token_id t : tokens)
    state = mixed(state, static_cast<std::uint64_t>(t));
  std::vector<float> row(vocab);
  for (std::size_t t = 0; t < vocab; ++t) {
    const auto u = static_cast<float>(mixed(state, t) % 4096) / 4096.0f;
    row[t] = 12.0f * u * u * u * u;
  }
  return row;
}

struct answer {
  std::vector<token_id> tokens;
  std::vector<proto::position_logprobs> logprobs;
  proto::choice_end end;
  std::size_t verified = 0, accepted = 0;
};

std::unique_ptr<choice_sampler> sampler_of(const proto::request_spec& spec, std::uint32_t choice,
                                           std::size_t words = vocab) {
  auto made = make_text_samplers(nullptr, words, {1})(spec, choice);
  if (!made.ok())
    throw std::runtime_error(made.error().render());
  return std::move(*made);
}

/// Drafts behind a history. May ask the sampler, as a draft model does.
using drafter = std::function<std::vector<token_id>(choice_sampler&, std::span<const token_id>)>;

answer generate(const proto::request_spec& spec, std::uint32_t choice, const drafter& draft) {
  const auto sampler = sampler_of(spec, choice);
  answer out;
  std::vector<token_id> history = spec.prompt;
  std::vector<float> logits;
  while (out.end.reason == proto::finish_reason::none) {
    const auto room = spec.sampling.max_tokens - static_cast<std::uint32_t>(out.tokens.size());
    std::vector<token_id> drafts = draft ? draft(*sampler, history) : std::vector<token_id>{};
    drafts.resize(drafts_wanted(static_cast<std::uint32_t>(drafts.size()), room));
    logits.clear();
    std::vector<token_id> seen = history;
    for (std::size_t j = 0; j <= drafts.size(); ++j) {
      const auto row = logits_behind(seen);
      logits.insert(logits.end(), row.begin(), row.end());
      if (j < drafts.size())
        seen.push_back(drafts[j]);
    }
    const auto v = verify_drafts(*sampler, logits, history, drafts);
    if (!v.ok())
      throw std::runtime_error(v.error().render());
    EXPECT_EQ(v->tokens.size(), v->accepted + 1);
    out.verified += drafts.size();
    out.accepted += v->accepted;
    for (const drawn_token& t : v->tokens) {
      history.push_back(t.token);
      out.tokens.push_back(t.token);
      out.logprobs.push_back(t.logprobs);
      out.end = sampler->accept(t.token);
      if (out.end.reason != proto::finish_reason::none)
        break;
    }
  }
  return out;
}

void expect_same(const answer& expected, const answer& found) {
  ASSERT_EQ(expected.tokens, found.tokens);
  EXPECT_EQ(expected.end.reason, found.end.reason);
  EXPECT_EQ(expected.end.kept_tokens, found.end.kept_tokens);
  ASSERT_EQ(expected.logprobs.size(), found.logprobs.size());
  for (std::size_t i = 0; i < expected.logprobs.size(); ++i) {
    const auto& a = expected.logprobs[i];
    const auto& b = found.logprobs[i];
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a.logprob), std::bit_cast<std::uint64_t>(b.logprob));
    EXPECT_EQ(a.top_tokens, b.top_tokens);
    EXPECT_EQ(a.top_logprobs, b.top_logprobs);
  }
}

proto::request_spec random_request(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return random() % n; };
  const auto one_in = [&](std::uint64_t n) { return below(n) == 0; };
  proto::request_spec spec;
  spec.request = request_id{1};
  for (std::uint64_t i = 0; i < 1 + below(12); ++i)
    spec.prompt.push_back(static_cast<token_id>(below(vocab)));
  proto::sampling_params& p = spec.sampling;
  p.max_tokens = static_cast<std::uint32_t>(1 + below(40));
  p.n = 3;
  constexpr std::array temperatures{0.0, 0.7, 1.3};
  p.temperature = temperatures[below(3)];
  p.seed = random();
  if (one_in(3))
    p.min_tokens = static_cast<std::uint32_t>(below(p.max_tokens + 1));
  if (one_in(3))
    p.top_p = 0.5 + 0.05 * static_cast<double>(below(10));
  if (one_in(3))
    p.top_k = static_cast<std::uint32_t>(1 + below(20));
  if (one_in(4))
    p.min_p = 0.05;
  if (one_in(2))
    p.presence_penalty = 0.5 * static_cast<double>(below(9)) - 2;
  if (one_in(2))
    p.frequency_penalty = 0.5 * static_cast<double>(below(9)) - 2;
  if (one_in(2))
    p.repetition_penalty = 0.7 + 0.2 * static_cast<double>(below(5));
  if (one_in(3))
    for (token_id t = 0; t < 8; ++t)
      p.logit_bias.push_back({t * 7, static_cast<double>(below(9)) - 4});
  if (one_in(2))
    p.logprobs = static_cast<std::int32_t>(below(4));
  if (one_in(3))
    p.stop_token_ids = {5, 9};
  if (one_in(8))
    p.forced_ids = {3, 4, 5};
  p.ignore_eos = one_in(4);
  return spec;
}

TEST(speculation, accepts_until_the_first_draft_that_the_target_would_not_draw) {
  proto::request_spec spec;
  spec.prompt = {2, 3};
  spec.sampling.temperature = 0;
  spec.sampling.max_tokens = 20;
  spec.sampling.ignore_eos = true;
  const answer plain = generate(spec, 0, {});
  const auto sampler = sampler_of(spec, 0);
  std::vector<token_id> drafts{plain.tokens.begin(), plain.tokens.begin() + 3};
  drafts[2] = (drafts[2] + 1) % static_cast<token_id>(vocab);
  std::vector<token_id> seen = spec.prompt;
  std::vector<float> logits = logits_behind(seen);
  for (const token_id d : drafts) {
    seen.push_back(d);
    const auto row = logits_behind(seen);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  const auto v = verify_drafts(*sampler, logits, spec.prompt, drafts);
  ASSERT_TRUE(v.ok());
  EXPECT_EQ(v->accepted, 2u);
  EXPECT_EQ(rows_kept(*v), 3u);
  ASSERT_EQ(v->tokens.size(), 3u);
  EXPECT_EQ(v->tokens[2].token, plain.tokens[2]);
}

TEST(speculation, refuses_logits_that_are_no_whole_rows) {
  proto::request_spec spec;
  spec.prompt = {2};
  const auto sampler = sampler_of(spec, 0);
  const std::vector<float> logits(vocab * 2 + 1);
  const std::array<token_id, 1> drafts{3};
  const auto v = verify_drafts(*sampler, logits, spec.prompt, drafts);
  ASSERT_FALSE(v.ok());
  EXPECT_EQ(v.error().code, ec::bad_argument);
  EXPECT_EQ(verify_drafts(*sampler, {}, spec.prompt, {}).error().code, ec::bad_argument);
}

TEST(speculation, never_drafts_beyond_the_last_token) {
  EXPECT_EQ(drafts_wanted(5, 0), 0u);
  EXPECT_EQ(drafts_wanted(5, 1), 0u);
  EXPECT_EQ(drafts_wanted(5, 4), 3u);
  EXPECT_EQ(drafts_wanted(5, 9), 5u);
}

TEST(speculation, gives_the_tokens_and_logprob_bits_of_a_run_without_it) {
  std::size_t verified = 0, accepted = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random{seed};
    const proto::request_spec spec = random_request(random);
    for (std::uint32_t choice = 0; choice < spec.sampling.n; ++choice) {
      const answer plain = generate(spec, choice, {});
      for (std::size_t length = 1; length <= 5; ++length) // a draft model that is right, mostly
        expect_same(
            plain,
            generate(spec, choice, [&](choice_sampler& s, std::span<const token_id> history) {
              std::vector<token_id> drafts, seen{history.begin(), history.end()};
              for (std::size_t k = 0; k < length; ++k) {
                auto row = logits_behind(seen);
                row[random() % vocab] += 3;
                const auto d = s.draw_draft(row, history, drafts);
                EXPECT_TRUE(d.ok());
                drafts.push_back(*d);
                seen.push_back(*d);
              }
              return drafts;
            }));
      const answer guessed =
          generate(spec, choice, [&](choice_sampler&, std::span<const token_id> history) {
            std::vector<token_id> drafts(random() % 6);
            for (token_id& d : drafts) // tokens that stand there already: penalties count them
              d = random() % 2 == 0 ? history[random() % history.size()]
                                    : static_cast<token_id>(random() % vocab);
            return drafts;
          });
      expect_same(plain, guessed);
      const answer perfect =
          generate(spec, choice, [&](choice_sampler& s, std::span<const token_id> history) {
            std::vector<token_id> drafts, seen{history.begin(), history.end()};
            for (std::size_t k = 0; k < 5; ++k) {
              const auto d = s.draw_draft(logits_behind(seen), history, drafts);
              EXPECT_TRUE(d.ok());
              drafts.push_back(*d);
              seen.push_back(*d);
            }
            return drafts;
          });
      expect_same(plain, perfect);
      verified += perfect.verified;
      accepted += perfect.accepted;
    }
  }
  // A draft model equal to the target draws the target's tokens: the same noise, the same rules.
  // Only what follows an end of the text is verified and not accepted.
  EXPECT_GT(accepted, verified - verified / 10);
  EXPECT_GT(verified, 10000u);
}

// ---- distributions

double chi_square(std::span<const std::size_t> counts, std::span<const double> shares) {
  double total = 0, sum = 0;
  for (const std::size_t c : counts)
    total += static_cast<double>(c);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * shares[i];
    sum += (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected)
           / expected;
  }
  return sum;
}

/// The counter-example of the DSpark paper: tokens A and B, target 0.7, drafter 0.5, and a schedule
/// that verifies a block only if the confidence behind a first draft A makes it worth while.
struct counter_example {
  static constexpr double target_a = 0.7, draft_a = 0.5;

  /// Drafts to verify that maximise tokens per second. @param second confidence of draft 2
  static std::size_t best_length(double second) {
    constexpr std::array steps_per_second{1.0, 0.5, 0.45};
    const std::array tokens{1.0, 1.0 + 0.8, 1.0 + 0.8 + 0.8 * second};
    std::size_t best = 0;
    for (std::size_t k = 1; k < 3; ++k)
      if (tokens[k] * steps_per_second[k] > tokens[best] * steps_per_second[best])
        best = k;
    return best;
  }
  static std::size_t length_for(bool first_is_a) { return best_length(first_is_a ? 0.9 : 0.0); }
};

/// First token by accept-with-ratio: the rule that needs a schedule blind to the draft.
bool ratio_rule_gives_a(std::mt19937_64& random, std::size_t length, bool draft_is_a) {
  std::uniform_real_distribution<double> uniform;
  const double p = draft_is_a ? counter_example::target_a : 1 - counter_example::target_a;
  const double q = draft_is_a ? counter_example::draft_a : 1 - counter_example::draft_a;
  if (length == 0)
    return uniform(random) < counter_example::target_a;
  if (uniform(random) * q < p)
    return draft_is_a;
  return true; // max(p - q, 0) has its whole mass on A
}

TEST(speculation, a_schedule_that_sees_the_draft_biases_the_ratio_rule_but_not_ours) {
  constexpr std::size_t trials = 1000000;
  constexpr double limit = 15.14; // chi-square, one degree of freedom, p = 1e-4
  const std::array shares{counter_example::target_a, 1 - counter_example::target_a};
  std::mt19937_64 random{20260707};
  std::uniform_real_distribution<double> uniform;
  proto::request_spec spec;
  spec.prompt = {0};
  spec.sampling.seed = 99;
  spec.sampling.ignore_eos = true;
  const auto sampler = sampler_of(spec, 0, 2);
  const std::vector<float> target{std::log(0.7f), std::log(0.3f)};
  const std::vector<float> draft{std::log(0.5f), std::log(0.5f)};
  std::vector<float> rows; // row 0 is what counts; the others are never reached here
  for (int j = 0; j < 3; ++j)
    rows.insert(rows.end(), target.begin(), target.end());
  const std::vector<token_id> history(trials * 4);
  for (const bool fresh : {true, false}) {
    std::array<std::size_t, 2> by_ratio{}, by_match{};
    bool last_was_a = true;
    for (std::size_t i = 0; i < trials; ++i) {
      const bool draft_is_a = uniform(random) < counter_example::draft_a;
      const std::size_t length = counter_example::length_for(fresh ? draft_is_a : last_was_a);
      ++by_ratio[ratio_rule_gives_a(random, length, draft_is_a) ? 0 : 1];
      last_was_a = draft_is_a;
      // Every position has noise of its own, so trials at different positions are independent.
      const auto before = std::span{history}.first(1 + i * 4);
      const auto first = sampler->draw_draft(draft, before, {});
      ASSERT_TRUE(first.ok());
      const std::vector<token_id> drafts(
          counter_example::length_for(fresh ? *first == 0 : last_was_a), *first);
      const auto v =
          verify_drafts(*sampler, std::span{rows}.first((drafts.size() + 1) * 2), before, drafts);
      ASSERT_TRUE(v.ok());
      ++by_match[static_cast<std::size_t>(v->tokens.front().token)];
    }
    const double ratio = chi_square(by_ratio, shares), match = chi_square(by_match, shares);
    std::printf("%s confidences: A by ratio %.4f (chi-square %.1f), by match %.4f (%.2f)\n",
                fresh ? "fresh" : "lagged", static_cast<double>(by_ratio[0]) / trials, ratio,
                static_cast<double>(by_match[0]) / trials, match);
    if (fresh) {
      EXPECT_GT(ratio, limit);
      EXPECT_NEAR(static_cast<double>(by_ratio[0]) / trials, 0.85, 0.005);
    } else {
      EXPECT_LT(ratio, limit);
    }
    EXPECT_LT(match, limit);
  }
}

std::vector<double> softmax(std::span<const float> logits, double temperature) {
  std::vector<double> p;
  double sum = 0;
  for (const float l : logits)
    sum += p.emplace_back(std::exp(static_cast<double>(l) / temperature));
  for (double& x : p)
    x /= sum;
  return p;
}

TEST(speculation, tokens_follow_the_targets_distribution_at_every_depth_and_temperature) {
  constexpr std::size_t trials = 131072;
  const std::array<std::vector<float>, 3> target{
      std::vector<float>{0.0f, 1.8f, 1.1f}, {1.0f, 0.2f, -0.5f}, {-0.3f, 0.4f, 0.5f}};
  const std::array<std::vector<float>, 3> draft{
      std::vector<float>{0.6f, 1.0f, 1.2f}, {0.2f, 0.9f, -0.5f}, {0.1f, 0.1f, 0.1f}};
  const std::vector<token_id> history(trials * 8 + 1); // the last token is 0
  for (const double temperature : {0.3, 1.0, 2.0})
    for (const std::size_t depth : {std::size_t{1}, std::size_t{3}, std::size_t{7}}) {
      SCOPED_TRACE(temperature);
      SCOPED_TRACE(depth);
      proto::request_spec spec;
      spec.prompt = {0};
      spec.sampling.temperature = temperature;
      spec.sampling.seed = 4711;
      spec.sampling.ignore_eos = true;
      const auto sampler = sampler_of(spec, 0, 3);
      std::array<std::size_t, 3> first{};
      std::array<std::array<std::size_t, 3>, 3> second{}; // by the first token
      std::size_t accepted = 0;
      std::vector<float> rows;
      std::vector<token_id> drafts;
      for (std::size_t i = 0; i < trials; ++i) {
        const auto before = std::span{history}.first(1 + i * 8);
        drafts.clear();
        rows.assign(target[0].begin(), target[0].end());
        token_id last = 0;
        for (std::size_t k = 0; k < depth; ++k) {
          const auto d = sampler->draw_draft(draft[static_cast<std::size_t>(last)], before, drafts);
          ASSERT_TRUE(d.ok());
          drafts.push_back(last = *d);
          const auto& row = target[static_cast<std::size_t>(last)];
          rows.insert(rows.end(), row.begin(), row.end());
        }
        const auto v = verify_drafts(*sampler, rows, before, drafts);
        ASSERT_TRUE(v.ok());
        const auto t = static_cast<std::size_t>(v->tokens[0].token);
        ++first[t];
        accepted += v->accepted;
        if (v->tokens.size() > 1)
          ++second[t][static_cast<std::size_t>(v->tokens[1].token)];
      }
      const auto within = [&](std::span<const std::size_t> counts, std::span<const double> shares,
                              double sigmas) {
        std::size_t total = 0;
        for (const std::size_t c : counts)
          total += c;
        for (std::size_t t = 0; t < 3; ++t) {
          const double n = static_cast<double>(total);
          const double sigma = std::sqrt(n * shares[t] * (1 - shares[t]));
          EXPECT_NEAR(static_cast<double>(counts[t]), n * shares[t], sigmas * sigma)
              << "token " << t;
        }
      };
      within(first, softmax(target[0], temperature), 3);
      for (std::size_t t = 0; t < 3; ++t)
        within(second[t], softmax(target[t], temperature), 3.5); // nine times as many looks
      EXPECT_GT(accepted, trials / 4);
    }
}

} // namespace
} // namespace di::engine
