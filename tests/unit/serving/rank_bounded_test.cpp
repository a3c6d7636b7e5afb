// SPDX-License-Identifier: Apache-2.0
// RANK in bounded mode: answers and log probabilities are those of rows computed by hand behind the
// recorded hit, also after a preemption and in a new life; a hit that cannot be is refused.
#include "tests/support/lone_rank.hpp"
#include "tests/support/prefix_modes.hpp"

namespace di::test {
namespace {

using token_list = std::vector<token_id>;

proto::assign_request ask(std::uint64_t id, std::size_t prompt_tokens, proto::prefix_mode prefix,
                          std::uint32_t max_tokens = 40) {
  proto::assign_request m;
  m.spec.request = request_id{id};
  for (std::size_t i = 0; i < prompt_tokens; ++i) // the first 280 are common to all
    m.spec.prompt.push_back(static_cast<token_id>(5 + (i * i + (i >= 280 ? id : 0)) % 90));
  m.spec.sampling.max_tokens = max_tokens;
  m.spec.sampling.temperature = 1;
  m.spec.sampling.seed = id;
  m.spec.sampling.logprobs = 4;
  m.spec.sampling.ignore_eos = true;
  m.spec.prefix = prefix;
  m.attempt = 1;
  return m;
}

/// Samples from reference logits as RANK should have.
void expect_drawn_from(const std::vector<float>& logits, const proto::assign_request& m,
                       const token_list& tokens,
                       const std::vector<proto::position_logprobs>& logprobs) {
  const auto vocab = static_cast<std::size_t>(demo()->spec().vocab_size);
  const auto make = engine::make_text_samplers(nullptr, vocab, {demo()->spec().eos_token_id});
  const auto sampler = make(m.spec, 0).value();
  ASSERT_EQ(logits.size(), tokens.size() * vocab);
  ASSERT_EQ(logprobs.size(), tokens.size());
  token_list history = m.spec.prompt;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto drawn = sampler->draw(std::span{logits}.subspan(i * vocab, vocab), history, {});
    ASSERT_TRUE(drawn.ok());
    ASSERT_EQ(drawn->token, tokens[i]) << "token " << i;
    ASSERT_EQ(drawn->logprobs.logprob, logprobs[i].logprob) << "token " << i;
    ASSERT_EQ(drawn->logprobs.top_tokens, logprobs[i].top_tokens) << "token " << i;
    ASSERT_EQ(drawn->logprobs.top_logprobs, logprobs[i].top_logprobs) << "token " << i;
    history.push_back(tokens[i]);
    sampler->accept(tokens[i]);
  }
}

bool same(std::span<const proto::position_logprobs> a,
          std::span<const proto::position_logprobs> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.logprob == y.logprob && x.top_tokens == y.top_tokens
           && x.top_logprobs == y.top_logprobs;
  });
}

testing::ask by_hand(const proto::assign_request& m, const token_list& tokens) {
  testing::ask a;
  a.prompt = m.spec.prompt;
  a.output.assign(tokens.begin(), tokens.end() - 1);
  a.prefill = m.spec.prefill;
  a.prefix = m.spec.prefix;
  return a;
}

/// A donor of exact pages, then bounded requests with choices of their own, all at once.
void serve(lone_rank& rank, const std::vector<proto::assign_request>& all) {
  rank.assign(ask(1, 290, proto::prefix_mode::exact, 2));
  rank.run();
  for (const proto::assign_request& m : all)
    rank.assign(m);
  rank.run();
  EXPECT_TRUE(rank.log.failed.empty());
}

std::vector<proto::assign_request> bounded_requests(proto::prefill_mode prefill) {
  std::vector<proto::assign_request> all;
  for (std::uint64_t id = 2; id <= 5; ++id) {
    all.push_back(ask(id, 470 + 6 * id, proto::prefix_mode::bounded, 170));
    all.back().spec.prefill = prefill;
  }
  return all;
}

class rank_bounded : public ::testing::TestWithParam<proto::prefill_mode> {};

TEST_P(rank_bounded, answers_what_rows_behind_the_hit_compute_also_when_preempted) {
  const auto all = bounded_requests(GetParam());
  lone_rank_setting setting;
  lone_rank roomy{demo(), setting};
  serve(roomy, all);
  std::size_t other = 0; // than a cold run says
  for (const proto::assign_request& m : all) {
    const auto id = m.spec.request.v;
    ASSERT_EQ(roomy.log.bounded.at(id), 256U);
    const token_list& tokens = roomy.log.tokens.at({id, 0});
    const auto& logprobs = roomy.log.logprobs.at({id, 0});
    const testing::ask a = by_hand(m, tokens);
    const auto wanted = testing::bounded_by_hand(*demo(), a, 256);
    expect_drawn_from(wanted.logits, m, tokens, logprobs);
    other += testing::cold_run(*demo(), a).logits != wanted.logits;
  }
  EXPECT_EQ(other, all.size()) << "a cold run would not be noticed";
  std::uint64_t preempted = 0;
  for (const char* speculation : {"off", "fixed:5"}) {
    setting.pages = 9;
    setting.speculation = speculation;
    lone_rank tight{demo(), setting};
    auto recorded = all; // the donor's pages may be gone when the last one begins
    for (proto::assign_request& m : recorded) {
      m.spec.prefix_recorded = true;
      m.spec.prefix_tokens = 256;
    }
    serve(tight, recorded);
    preempted += tight.actor().core().preemptions();
    for (const proto::assign_request& m : all) {
      const auto id = m.spec.request.v;
      EXPECT_EQ(tight.log.bounded.at(id), 256U) << id;
      EXPECT_EQ(tight.log.tokens.at({id, 0}), roomy.log.tokens.at({id, 0})) << id;
      EXPECT_TRUE(same(tight.log.logprobs.at({id, 0}), roomy.log.logprobs.at({id, 0}))) << id;
    }
  }
  EXPECT_GT(preempted, 0U);
}

TEST_P(rank_bounded, goes_on_with_the_same_bits_in_a_life_that_knows_no_page) {
  const auto all = bounded_requests(GetParam());
  lone_rank first{demo(), {}};
  serve(first, all);
  lone_rank second{demo(), {}};
  for (proto::assign_request m : all) {
    const auto id = m.spec.request.v;
    const token_list& said = first.log.tokens.at({id, 0});
    const auto kept = static_cast<std::ptrdiff_t>(10 * id);
    m.attempt = 2;
    m.spec.prefix_recorded = true;
    m.spec.prefix_tokens = first.log.bounded.at(id);
    m.progress.push_back({0, {said.begin(), said.begin() + kept}, false});
    second.log.tokens[{id, 0}] = m.progress[0].tokens;
    second.assign(std::move(m));
  }
  second.run();
  EXPECT_TRUE(second.log.failed.empty());
  for (const proto::assign_request& m : all) {
    const auto id = m.spec.request.v;
    EXPECT_EQ(second.log.tokens.at({id, 0}), first.log.tokens.at({id, 0})) << id;
    EXPECT_TRUE(same(std::span{first.log.logprobs.at({id, 0})}.subspan(10 * id),
                     std::span{second.log.logprobs.at({id, 0})}.subspan(10 * id)))
        << id;
  }
}

INSTANTIATE_TEST_SUITE_P(prefill, rank_bounded,
                         ::testing::Values(proto::prefill_mode::full,
                                           proto::prefill_mode::compact));

TEST(rank_bounded_hits, are_refused_if_no_attempt_can_have_had_them) {
  lone_rank rank{demo(), {}};
  std::uint64_t id = 1;
  for (const std::uint32_t hit : {64U, 200U, 384U, 4096U}) { // too short, no pages, too long
    auto m = ask(++id, 400, proto::prefix_mode::bounded);
    m.spec.prefix_recorded = true;
    m.spec.prefix_tokens = hit;
    rank.assign(std::move(m));
    rank.run();
    ASSERT_TRUE(rank.log.failed.contains(id)) << hit;
    EXPECT_EQ(rank.log.failed.at(id), ec::bad_argument) << hit;
    EXPECT_FALSE(rank.log.tokens.contains({id, 0}));
  }
  auto fine = ask(++id, 400, proto::prefix_mode::bounded, 3);
  fine.spec.prefix_recorded = true;
  fine.spec.prefix_tokens = 256;
  rank.assign(std::move(fine));
  rank.run();
  EXPECT_EQ(rank.log.tokens.at({id, 0}).size(), 3U);
}

} // namespace
} // namespace di::test
