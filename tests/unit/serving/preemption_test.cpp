// SPDX-License-Identifier: Apache-2.0
// RANK with the demo model and too few pages: what is preempted and computed again ends with the
// same bytes, in every prefill and prefix mode, with and without drafts. No page is lost: the cores
// are checked after every message.
#include "tests/support/lone_rank.hpp"

namespace di::test {
namespace {

/// How the prompts of all requests are computed.
struct prompt_modes {
  proto::prefix_mode prefix = proto::prefix_mode::off;
  proto::prefill_mode prefill = proto::prefill_mode::full;
  std::uint32_t recorded = 0; ///< H of all requests; 0: none
};

/// Six requests that begin alike and grow by two pages.
std::vector<proto::assign_request> requests(const prompt_modes& modes) {
  std::vector<proto::assign_request> all;
  for (std::uint64_t id = 1; id <= 6; ++id) {
    proto::assign_request m;
    m.spec.request = request_id{id};
    for (std::size_t i = 0; i < 230 + 9 * id; ++i)
      m.spec.prompt.push_back(static_cast<token_id>(5 + (i * i + (i > 200 ? id : 0)) % 90));
    m.spec.sampling.max_tokens = 180;
    m.spec.sampling.temperature = id % 2 ? 0 : 1;
    m.spec.sampling.seed = id;
    m.spec.sampling.ignore_eos = true;
    m.spec.sampling.n = id == 3 ? 2 : 1;
    m.spec.prefix = modes.prefix;
    m.spec.prefill = modes.prefill;
    m.spec.prefix_recorded = modes.prefix == proto::prefix_mode::bounded;
    m.spec.prefix_tokens = modes.recorded;
    m.attempt = 1;
    all.push_back(std::move(m));
  }
  return all;
}

front_log run(const lone_rank_setting& s, const prompt_modes& modes, std::uint64_t* preempted) {
  lone_rank rank{demo(), s};
  for (proto::assign_request& m : requests(modes))
    rank.assign(std::move(m));
  rank.run();
  *preempted = rank.actor().core().preemptions();
  EXPECT_TRUE(rank.log.failed.empty());
  return std::move(rank.log);
}

void compare(const prompt_modes& modes) {
  std::uint64_t preempted = 0;
  lone_rank_setting s;
  s.steps_in_flight = 1;
  const front_log roomy = run(s, modes, &preempted);
  EXPECT_EQ(preempted, 0U);
  ASSERT_EQ(roomy.tokens.size(), 7U);
  for (const char* speculation : {"off", "varlen"}) {
    SCOPED_TRACE(speculation);
    s.speculation = speculation;
    s.steps_in_flight = 2;
    s.pages = 9;
    const front_log tight = run(s, modes, &preempted);
    EXPECT_GT(preempted, 0U);
    EXPECT_EQ(tight.tokens, roomy.tokens);
    EXPECT_EQ(tight.bounded, roomy.bounded);
  }
}

TEST(preemption, leaves_the_bytes_of_cold_runs) {
  compare({});
}

TEST(preemption, leaves_the_bytes_of_exact_hits_and_compact_prefill) {
  compare({proto::prefix_mode::exact, proto::prefill_mode::compact, 0});
}

TEST(preemption, leaves_the_bytes_behind_a_recorded_bounded_hit) {
  compare({proto::prefix_mode::bounded, proto::prefill_mode::full, 128});
}

} // namespace
} // namespace di::test
