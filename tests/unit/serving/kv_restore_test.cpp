// SPDX-License-Identifier: Apache-2.0
// Goal: a request that is resumed from restored KV has the bytes of one that is computed again, in
// every mode, with several choices, and when copies are lost, broken or stale; and no copy outlives
// its request.
#include "tests/support/kv_ranks.hpp"

namespace di::test {
namespace {

using namespace std::chrono_literals;

struct mode {
  proto::prefill_mode prefill;
  proto::prefix_mode prefix;
  std::uint32_t n;
};

std::string name_of(const ::testing::TestParamInfo<mode>& info) {
  const mode& m = info.param;
  return fmt::format("{}_{}_n{}", m.prefill == proto::prefill_mode::full ? "full" : "compact",
                     m.prefix == proto::prefix_mode::off     ? "off"
                     : m.prefix == proto::prefix_mode::exact ? "exact"
                                                             : "bounded",
                     m.n);
}

proto::request_spec spec_of(std::uint64_t id, const mode& m, std::size_t prompt_tokens = 620,
                            std::uint32_t max_tokens = 200) {
  proto::request_spec s;
  s.request = request_id{id};
  for (std::size_t i = 0; i < prompt_tokens; ++i) // the first 420 are common to all
    s.prompt.push_back(static_cast<token_id>(5 + (i * i + (i >= 420 ? id : 0)) % 90));
  s.sampling.n = m.n;
  s.sampling.max_tokens = max_tokens;
  s.sampling.temperature = 1;
  s.sampling.seed = id;
  s.sampling.logprobs = 2;
  s.sampling.ignore_eos = true;
  s.prefill = m.prefill;
  s.prefix = m.prefix;
  return s;
}

using choices = std::map<std::uint32_t, kv_front_core::choice>;

void expect_same(const choices& got, const choices& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [c, w] : wanted) {
    const auto& g = got.at(c);
    EXPECT_EQ(g.tokens, w.tokens) << "choice " << c;
    ASSERT_EQ(g.logprobs.size(), w.logprobs.size());
    for (std::size_t i = 0; i < w.logprobs.size(); ++i) {
      ASSERT_EQ(g.logprobs[i].logprob, w.logprobs[i].logprob) << "choice " << c << " token " << i;
      ASSERT_EQ(g.logprobs[i].top_logprobs, w.logprobs[i].top_logprobs) << c << ", " << i;
    }
  }
}

/// Lets a request of 420 common tokens run on rank 0, so that bounded and exact ones have a hit.
void warm(kv_ranks& ranks) {
  ranks.assign(rank_id{0},
               spec_of(1, {proto::prefill_mode::full, proto::prefix_mode::exact, 1}, 450, 2));
  ranks.finish();
}

bool has(kv_ranks& ranks, std::uint64_t id, std::size_t tokens) {
  const auto& r = ranks.request(id);
  if (r.choices.size() < r.spec.sampling.n)
    return false;
  return std::all_of(r.choices.begin(), r.choices.end(),
                     [tokens](const auto& c) { return c.second.tokens.size() >= tokens; });
}

/// Request 2 without any fault, on a rank that keeps no copies.
choices undisturbed(const mode& m) {
  kv_ranks_setting plain;
  plain.replicas = 0;
  kv_ranks ranks{plain};
  warm(ranks);
  ranks.assign(rank_id{0}, spec_of(2, m));
  ranks.finish();
  EXPECT_EQ(ranks.request(2).failed, ec::ok);
  return ranks.request(2).choices;
}

struct outcome {
  choices got;
  std::uint64_t rows = 0; ///< that the second rank computed
  std::uint64_t restored = 0;
  bool empty = false; ///< nothing is held in the end
};

/// Request 2 loses its rank after 150 tokens and goes on elsewhere.
outcome resumed(const mode& m, kv_ranks_setting setting,
                const std::function<void(kv_ranks&)>& after_death = {}) {
  kv_ranks ranks{setting};
  warm(ranks);
  ranks.assign(rank_id{0}, spec_of(2, m));
  EXPECT_TRUE(ranks.run_until([&] { return has(ranks, 2, 150); }));
  ranks.kill(rank_id{0});
  ranks.idle(1ms);
  if (after_death)
    after_death(ranks);
  ranks.resume(rank_id{1}, 2);
  ranks.finish();
  outcome o;
  o.got = ranks.request(2).choices;
  o.rows = ranks.rank(rank_id{1}).core().rows();
  o.restored = ranks.agent(rank_id{1}).on(proto::get_kv_agent{}).value().restored_items;
  ranks.idle(60s);
  o.empty = ranks.agents_empty();
  return o;
}

class kv_restore : public ::testing::TestWithParam<mode> {};

TEST_P(kv_restore, gives_the_bytes_of_computing_again) {
  const choices wanted = undisturbed(GetParam());
  kv_ranks_setting setting;
  setting.replicas = 0;
  const outcome computed = resumed(GetParam(), setting);
  expect_same(computed.got, wanted);
  EXPECT_EQ(computed.restored, 0U);

  setting.replicas = 1;
  const outcome restored = resumed(GetParam(), setting);
  expect_same(restored.got, wanted);
  EXPECT_GE(restored.restored, 5U);
  EXPECT_TRUE(restored.empty);
  // All but the rows since the last page boundary of each choice, and the rest of the answer.
  EXPECT_LT(restored.rows, GetParam().n * (128 + 60)) << computed.rows << " without";

  setting.speculation = "fixed:5";
  setting.steps_in_flight = 1;
  expect_same(resumed(GetParam(), setting).got, wanted);
}

TEST_P(kv_restore, computes_again_what_was_broken_on_the_way) {
  const choices wanted = undisturbed(GetParam());
  for (const std::size_t where : {5'000U, 60'000U}) { // in an early page, in a late piece
    bool flipped = false;
    const outcome broken = resumed(GetParam(), {}, [&](kv_ranks& ranks) {
      ranks.net().tamper = [&](const address&, parcel& body) {
        const auto* m = body.as<proto::pages_fetched>();
        if (m == nullptr || m->bytes.empty())
          return;
        auto changed = *m;
        std::vector<std::byte> bytes(m->bytes.data(), m->bytes.data() + m->bytes.size());
        bytes[std::min(where, bytes.size() - 1)] ^= std::byte{16};
        changed.bytes = shared_bytes::adopt(std::move(bytes));
        body = parcel::of(std::move(changed));
        flipped = true;
      };
    });
    expect_same(broken.got, wanted);
    EXPECT_TRUE(broken.empty);
    EXPECT_TRUE(flipped || broken.restored > 0) << "the asker is the buddy";
  }
}

TEST_P(kv_restore, computes_again_what_was_lost) {
  const choices wanted = undisturbed(GetParam());
  const outcome lost = resumed(GetParam(), {}, [](kv_ranks& ranks) {
    ranks.kill(rank_id{2});
    ranks.net().tamper = [](const address&, parcel& body) {
      if (body.as<proto::pages_fetched>() != nullptr)
        body = {};
    };
  });
  expect_same(lost.got, wanted);
  EXPECT_TRUE(lost.empty);
}

TEST_P(kv_restore, bears_a_network_that_loses_repeats_and_reorders) {
  const choices wanted = undisturbed(GetParam());
  kv_ranks_setting setting;
  setting.replicas = 2;
  setting.ranks = 4;
  setting.habits = {0.1, 0.1, 3'000};
  const outcome bad = resumed(GetParam(), setting);
  expect_same(bad.got, wanted);
  EXPECT_TRUE(bad.empty);
}

INSTANTIATE_TEST_SUITE_P(
    modes, kv_restore,
    ::testing::Values(mode{proto::prefill_mode::full, proto::prefix_mode::off, 1},
                      mode{proto::prefill_mode::full, proto::prefix_mode::exact, 2},
                      mode{proto::prefill_mode::full, proto::prefix_mode::bounded, 2},
                      mode{proto::prefill_mode::compact, proto::prefix_mode::off, 2},
                      mode{proto::prefill_mode::compact, proto::prefix_mode::exact, 1},
                      mode{proto::prefill_mode::compact, proto::prefix_mode::bounded, 1}),
    name_of);

const mode plain{proto::prefill_mode::full, proto::prefix_mode::exact, 1};

TEST(kv_restore_choice, computes_short_contexts_again) {
  kv_ranks_setting setting;
  setting.token_us = 0.01;
  const outcome cheap = resumed(plain, setting);
  expect_same(cheap.got, undisturbed(plain));
  EXPECT_EQ(cheap.restored, 0U);
}

TEST(kv_restore_twice, survives_the_death_of_the_second_owner_too) {
  kv_ranks_setting setting;
  setting.ranks = 5;
  kv_ranks ranks{setting};
  warm(ranks);
  ranks.assign(rank_id{0}, spec_of(2, plain));
  ASSERT_TRUE(ranks.run_until([&] { return has(ranks, 2, 90); }));
  ranks.kill(rank_id{0});
  ranks.idle(1ms);
  ranks.resume(rank_id{1}, 2);
  ASSERT_TRUE(ranks.run_until([&] { return has(ranks, 2, 170); }));
  ranks.kill(rank_id{1});
  ranks.idle(1ms);
  ranks.resume(rank_id{2}, 2);
  ranks.finish();
  expect_same(ranks.request(2).choices, undisturbed(plain));
  EXPECT_GE(ranks.agent(rank_id{2}).on(proto::get_kv_agent{}).value().restored_items, 5U);
  ranks.idle(60s);
  EXPECT_TRUE(ranks.agents_empty());
}

TEST(kv_restore_stale, a_superseded_owner_takes_nothing_from_the_new_one) {
  kv_ranks ranks{{}};
  warm(ranks);
  ranks.assign(rank_id{0}, spec_of(2, plain));
  ASSERT_TRUE(ranks.run_until([&] { return has(ranks, 2, 140); }));
  ranks.resume(rank_id{1}, 2); // the old one lives, and learns of it by its next commit
  ranks.finish();
  expect_same(ranks.request(2).choices, undisturbed(plain));
  ranks.idle(60s);
  EXPECT_TRUE(ranks.agents_empty());
}

} // namespace
} // namespace di::test
