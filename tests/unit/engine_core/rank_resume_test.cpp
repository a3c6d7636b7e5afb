// SPDX-License-Identifier: Apache-2.0
// RANK's later attempts: where they go on, and before whom.
#include "tests/support/counting_rank.hpp"

namespace di::engine {
namespace {

TEST(rank_core, resumes_behind_the_emitted_tokens) {
  rank_core core = make_core();
  outbox out;
  auto request = ask(1, 3, 5);
  request.attempt = 2;
  request.spec.sampling.n = 2;
  request.progress = {{0, {100, 101}, false}, {1, {100, 101, 102}, true}};
  ASSERT_TRUE(core.on(request, {}, out));
  const step_plan& plan = core.launch({}, out);
  ASSERT_EQ(plan.segments.size(), 1U); // the second choice had ended
  EXPECT_EQ(plan.segments[0].tokens, (std::vector<token_id>{1, 1, 1, 100, 101}));
  draw(core);
  EXPECT_EQ(core.finish({}, out), std::vector<token_id>{102});
  const auto commit = only<proto::tokens_committed>(out);
  EXPECT_EQ(commit.first_index, 2U);
  EXPECT_EQ(commit.attempt, 2U);
  core.check();
}

TEST(rank_core, draws_no_token_past_the_limit_when_it_resumes_there) {
  rank_core core = make_core();
  outbox out;
  auto request = ask(1, 3, 2);
  request.attempt = 2;
  request.progress = {{0, {100, 101}, false}};
  ASSERT_TRUE(core.on(request, {}, out));
  EXPECT_FALSE(core.has_work());
  const auto commit = only<proto::tokens_committed>(out);
  EXPECT_TRUE(commit.tokens.empty());
  EXPECT_EQ(commit.first_index, 2U);
  EXPECT_EQ(commit.end.reason, proto::finish_reason::length);
  EXPECT_EQ(commit.end.kept_tokens, 2U);
  core.check();
}

TEST(rank_core, computes_resumed_requests_before_those_that_came_before_them) {
  rank_options o = small_rank();
  o.step_rows = 12;
  rank_core core = make_core(o);
  outbox out;
  ASSERT_TRUE(core.on(ask(1, 20, 3), {}, out));
  ASSERT_TRUE(core.on(ask(2, 20, 3), {}, out));
  proto::assign_request resumed = ask(3, 20, 8);
  resumed.attempt = 2;
  resumed.progress = {{0, {100, 101}, false}};
  ASSERT_TRUE(core.on(resumed, {}, out));
  core.check();
  const auto& segments = core.launch({}, out).segments;
  ASSERT_FALSE(segments.empty());
  EXPECT_EQ(core.request_of(segments[0].sequence), request_id{3});
  EXPECT_EQ(segments[0].tokens.size(), 12U);
}

} // namespace
} // namespace di::engine
