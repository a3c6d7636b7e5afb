// SPDX-License-Identifier: Apache-2.0
// RANK with the demo model under withdrawals and too few pages, with prefixes cached from what was
// withdrawn: the bytes of cold runs; and drafts that are as good behind a cached prefix as without.
#include "tests/support/lone_rank.hpp"

#include <random>

namespace di::test {
namespace {

using token_list = std::vector<token_id>;

proto::assign_request ask(std::uint64_t id, token_list prompt, std::uint32_t max_tokens) {
  proto::assign_request m;
  m.spec.request = request_id{id};
  m.spec.prompt = std::move(prompt);
  m.spec.sampling.max_tokens = max_tokens;
  m.spec.sampling.temperature = id % 2 ? 0 : 1;
  m.spec.sampling.seed = id;
  m.spec.sampling.ignore_eos = true;
  m.spec.prefix = proto::prefix_mode::exact;
  m.attempt = 1;
  return m;
}

token_list text(std::size_t count, std::size_t parts_at = ~std::size_t{0}, std::size_t mark = 0) {
  token_list tokens;
  for (std::size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<token_id>(5 + (i * i + (i >= parts_at ? mark : 0)) % 90));
  return tokens;
}

struct crowd {
  std::vector<proto::assign_request> first, second;
  std::map<std::uint64_t, std::size_t> cancel_at;
  front_log cold;
};

/// Six requests, and six that go on from what the first had said, all or up to the withdrawal.
crowd make_crowd(std::uint64_t seed, proto::prefill_mode prefill) {
  std::mt19937_64 random{seed};
  crowd c;
  lone_rank_setting plain;
  plain.steps_in_flight = 1;
  lone_rank alone{demo(), plain};
  const auto cold = [](proto::assign_request m) {
    m.spec.prefix = proto::prefix_mode::off;
    return m;
  };
  for (std::uint64_t id = 1; id <= 6; ++id) {
    auto m = ask(id, text(180 + random() % 60, 100 + 20 * (id % 3), id),
                 static_cast<std::uint32_t>(60 + random() % 60));
    m.spec.prefill = prefill;
    if (random() % 2)
      c.cancel_at[id] = 1 + random() % m.spec.sampling.max_tokens;
    alone.assign(cold(m));
    c.first.push_back(std::move(m));
  }
  alone.run();
  for (std::uint64_t id = 1; id <= 6; ++id) {
    const token_list& said = alone.log.tokens.at({id, 0});
    const auto cut = c.cancel_at.find(id);
    const std::size_t kept = cut == c.cancel_at.end() ? said.size() : cut->second;
    token_list prompt = c.first[id - 1].spec.prompt;
    prompt.insert(prompt.end(), said.begin(), said.begin() + static_cast<std::ptrdiff_t>(kept));
    prompt.push_back(static_cast<token_id>(7 + id));
    auto m = ask(10 + id, std::move(prompt), 12);
    m.spec.prefill = prefill;
    alone.assign(cold(m));
    c.second.push_back(std::move(m));
  }
  alone.run();
  c.cold = std::move(alone.log);
  return c;
}

void expect_cold_bytes(const crowd& c, const lone_rank_setting& setting, std::uint64_t& preempted) {
  lone_rank rank{demo(), setting};
  rank.log.cancel_at = c.cancel_at;
  for (const auto* wave : {&c.first, &c.second}) {
    for (const proto::assign_request& m : *wave)
      rank.assign(m);
    rank.run();
  }
  preempted += rank.actor().core().preemptions();
  EXPECT_TRUE(rank.log.failed.empty());
  ASSERT_EQ(rank.log.tokens.size(), c.cold.tokens.size());
  for (const auto& [who, wanted] : c.cold.tokens) {
    const token_list& got = rank.log.tokens.at(who);
    const bool withdrawn = c.cancel_at.contains(who.first);
    ASSERT_TRUE(withdrawn ? got.size() <= wanted.size() : got.size() == wanted.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), wanted.begin())) << "request " << who.first;
  }
}

TEST(rank_crowd, leaves_the_bytes_of_cold_runs_behind_prefixes_of_withdrawn_requests) {
  std::uint64_t preempted = 0;
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const auto prefill = seed % 2 ? proto::prefill_mode::full : proto::prefill_mode::compact;
    const crowd c = make_crowd(seed, prefill);
    for (const char* speculation : {"off", "fixed:5"})
      for (const std::size_t snapshots : {std::size_t{1} << 20, std::size_t{64} << 20}) {
        SCOPED_TRACE(fmt::format("seed {} {} snapshots {}", seed, speculation, snapshots));
        lone_rank_setting tight;
        tight.pages = seed == 2 ? 9 : 7;
        tight.step_rows = seed == 2 ? 40 : 256;
        tight.speculation = speculation;
        tight.snapshot_bytes = snapshots;
        expect_cold_bytes(c, tight, preempted);
      }
  }
  EXPECT_GT(preempted, 0U);
}

/// Tokens that one step drew on average, of requests that run one after the other.
struct pace {
  std::size_t rounds = 0, drawn = 0;
  friend bool operator==(const pace&, const pace&) = default;
  friend std::ostream& operator<<(std::ostream& to, const pace& p) {
    return to << p.drawn << " tokens in " << p.rounds << " rounds";
  }
};

pace pace_of(lone_rank& rank, proto::assign_request m) {
  rank.log.rounds = rank.log.drawn = 0;
  rank.assign(std::move(m));
  rank.run();
  return {rank.log.rounds, rank.log.drawn};
}

TEST(rank_crowd, drafts_behind_a_cached_prefix_as_well_as_in_a_cold_run) {
  for (const std::uint32_t depth : {1U, 2U})
    for (const std::size_t length : {200U, 256U, 257U, 300U}) {
      lone_rank_setting setting;
      setting.speculation = "fixed:5";
      setting.steps_in_flight = depth;
      lone_rank rank{demo(), setting};
      const pace cold = pace_of(rank, ask(1, text(length), 60));
      EXPECT_GT(cold.drawn, 3 * cold.rounds / 2) << "drafts are of no use here";
      EXPECT_EQ(pace_of(rank, ask(3, text(length), 60)), cold) << length << " again";
      EXPECT_EQ(rank.log.tokens.at({3, 0}), rank.log.tokens.at({1, 0}));
    }
}

TEST(rank_crowd, drafts_for_each_of_many_choices_as_well_as_for_one) {
  for (const std::uint32_t depth : {1U, 2U}) {
    lone_rank_setting setting;
    setting.speculation = "fixed:5";
    setting.steps_in_flight = depth;
    lone_rank rank{demo(), setting};
    auto one = ask(1, text(200), 60);
    one.spec.prefix = proto::prefix_mode::off;
    const pace single = pace_of(rank, one);
    auto two = one;
    two.spec.request = request_id{3};
    two.spec.sampling.n = 2;
    const pace both = pace_of(rank, two);
    EXPECT_EQ(both.drawn, 2 * single.drawn);
    EXPECT_LE(both.rounds, single.rounds + 1) << "the second choice draws a step later";
    EXPECT_EQ(rank.log.tokens.at({3, 0}), rank.log.tokens.at({1, 0}));
    EXPECT_EQ(rank.log.tokens.at({3, 1}), rank.log.tokens.at({1, 0}));
  }
}

} // namespace
} // namespace di::test
