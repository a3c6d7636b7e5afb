// SPDX-License-Identifier: Apache-2.0
// RANK's decisions: what is refused, how steps are planned, what is committed and sent again.
#include "messaging/proto/kv_agent.hpp"
#include "tests/support/counting_rank.hpp"

#include <gtest/gtest.h>

#include <map>

namespace di::engine {
namespace {

TEST(rank_core, refuses_what_it_cannot_serve_by_name) {
  rank_core core = make_core();
  outbox out;
  ASSERT_TRUE(core.on(ask(7, 90, 11), {}, out));
  const auto refused = only<proto::assignment_refused>(out);
  EXPECT_EQ(refused.code, ec::context_exceeded);
  EXPECT_EQ(refused.what, "request 7: 90 prompt tokens and max_tokens=11 exceed the context of 100 "
                          "tokens");
  EXPECT_EQ(refusal(core, ask(8, 0, 1)), ec::bad_argument);
  auto strange = ask(9, 2, 1);
  strange.spec.prompt[1] = 200;
  EXPECT_EQ(refusal(core, strange), ec::bad_argument);
  for (const std::int32_t code : {-2, 17}) {
    auto drafts = ask(10, 2, 1);
    drafts.spec.drafts = code;
    EXPECT_EQ(refusal(core, drafts), ec::bad_argument);
  }
  auto other_life = ask(10, 2, 1);
  other_life.life = incarnation{34};
  EXPECT_EQ(refusal(core, other_life), ec::stale_incarnation);
  auto many = ask(11, 2, 1);
  many.spec.sampling.n = 21;
  EXPECT_EQ(refusal(core, many), ec::limit_exceeded) << "not even an idle rank would take it";
  core.install_view(epoch{5}, out);
  auto old_view = ask(12, 2, 1);
  old_view.view = epoch{4};
  EXPECT_EQ(refusal(core, old_view), ec::stale_epoch);
  rank_options tight = small_rank();
  tight.kv_tokens = 50;
  rank_core small = make_core(tight);
  EXPECT_EQ(refusal(small, ask(13, 41, 10)), ec::kv_exhausted);
  ASSERT_TRUE(small.on(proto::drain_rank{}, {}, out));
  EXPECT_EQ(refusal(small, ask(14, 1, 1)), ec::unavailable);
  small.install_view(epoch{0}, out); // no news
  EXPECT_EQ(refusal(small, ask(15, 1, 1)), ec::unavailable);
  small.install_view(epoch{5}, out); // KEEPER says it again if it still means it
  auto next = ask(16, 1, 1);
  next.view = epoch{5};
  EXPECT_TRUE(small.on(next, {}, out).ok());
}

TEST(rank_core, takes_decode_rows_first_and_keeps_room_for_prompts) {
  rank_core core = make_core();
  outbox out;
  for (std::uint64_t id = 1; id <= 6; ++id)
    ASSERT_TRUE(core.on(ask(id, 1, 20), {}, out));
  step(core, out); // six one-token prompts fit one step
  ASSERT_TRUE(core.on(ask(7, 30, 5), {}, out));
  std::uint32_t prompt_rows = 0;
  std::vector<int> served(7);
  for (int i = 0; i < 2; ++i) {
    const step_plan& plan = core.launch({}, out);
    EXPECT_EQ(plan.rows, 8U);
    EXPECT_EQ(plan.prefill_rows, 3U);
    EXPECT_EQ(plan.segments.size(), 6U);
    EXPECT_EQ(plan.segments.back().tokens.size(), 3U); // the prompt comes last
    EXPECT_EQ(plan.segments.back().first_position, prompt_rows);
    prompt_rows += plan.prefill_rows;
    for (const auto& s : plan.segments)
      ++served.at(core.request_of(s.sequence).v - 1);
    draw(core);
    core.finish({}, out);
  }
  // Five of six decode rows fit: the turn goes round, nobody is left out twice.
  for (int i = 0; i < 6; ++i)
    EXPECT_GE(served[static_cast<std::size_t>(i)], 1) << i;
}

TEST(rank_core, takes_no_more_rows_of_a_prompt_than_asked_for) {
  rank_options o = small_rank();
  o.prefill_rows_max = 3;
  rank_core core = make_core(o);
  outbox out;
  ASSERT_TRUE(core.on(ask(1, 7, 2), {}, out));
  ASSERT_TRUE(core.on(ask(2, 7, 2), {}, out));
  std::vector<std::vector<std::size_t>> sizes;
  for (int i = 0; i < 3; ++i) {
    sizes.emplace_back();
    for (const planned_segment& s : core.launch({}, out).segments)
      sizes.back().push_back(s.tokens.size());
    draw(core);
    core.finish({}, out);
    core.check();
  }
  EXPECT_EQ(sizes, (std::vector<std::vector<std::size_t>>{{3, 3}, {3, 3}, {1, 1}}));
}

TEST(rank_core, commits_each_token_and_ends_at_the_limit) {
  rank_core core = make_core();
  outbox out;
  auto request = ask(1, 3, 2);
  request.spec.sampling.logprobs = 0;
  ASSERT_TRUE(core.on(request, {}, out));
  EXPECT_EQ(only<proto::request_taken>(out).attempt, 1U);
  out.take();
  EXPECT_EQ(step(core, out), std::vector<token_id>{100});
  auto commit = only<proto::tokens_committed>(out);
  EXPECT_EQ(commit.first_index, 0U);
  EXPECT_EQ(commit.tokens, std::vector<token_id>{100});
  EXPECT_EQ(commit.logprobs.size(), 1U);
  EXPECT_EQ(commit.end.reason, proto::finish_reason::none);
  out.take();
  step(core, out);
  commit = only<proto::tokens_committed>(out);
  EXPECT_EQ(commit.first_index, 1U);
  EXPECT_EQ(commit.end.reason, proto::finish_reason::length);
  EXPECT_EQ(commit.end.kept_tokens, 2U);
  EXPECT_EQ(core.kv().sequences(), 0U);
  EXPECT_FALSE(core.has_work());
  out.take();
  ASSERT_TRUE(core.on(proto::commit_accepted{request_id{1}, 0, 1, 2, true}, {}, out));
  EXPECT_EQ(only<proto::request_settled>(out).request, request_id{1});
  core.check();
  out.take();
  ASSERT_TRUE(core.on(request, {}, out)); // assigned once more after its end
  EXPECT_EQ(only<proto::request_settled>(out).request, request_id{1});
  EXPECT_FALSE(core.has_work());
}

TEST(rank_core, sends_again_what_is_not_acknowledged_and_pauses) {
  rank_core core = make_core();
  outbox out;
  ASSERT_TRUE(core.on(ask(1, 2, 50), {}, out));
  for (int i = 0; i < 10; ++i)
    step(core, out);
  EXPECT_EQ(core.unacknowledged(), 4U); // then it waits
  EXPECT_FALSE(core.has_work());
  out.take();
  const instant later = instant{} + std::chrono::seconds{1};
  ASSERT_TRUE(core.on_due({1, 0}, later, out));
  auto again = only<proto::tokens_committed>(out);
  EXPECT_EQ(again.first_index, 0U);
  EXPECT_EQ(again.tokens.size(), 4U);
  EXPECT_TRUE(test::armed(out));
  out.take();
  ASSERT_TRUE(core.on(proto::commit_accepted{request_id{1}, 0, 1, 3, false}, later, out));
  EXPECT_TRUE(core.has_work());
  ASSERT_TRUE(core.on_due({1, 0}, later + std::chrono::seconds{1}, out));
  again = only<proto::tokens_committed>(out);
  EXPECT_EQ(again.first_index, 3U);
  EXPECT_EQ(again.tokens, std::vector<token_id>{103});
  core.check();
}

TEST(rank_core, ends_with_the_token_that_its_sampler_names) {
  rank_core core = make_core(small_rank(), 102);
  outbox out;
  auto request = ask(1, 5, 50);
  request.spec.sampling.n = 2;
  ASSERT_TRUE(core.on(request, {}, out));
  for (int i = 0; i < 5; ++i)
    step(core, out);
  int ends = 0;
  for (const auto& [to, m] : sent<proto::tokens_committed>(out)) {
    EXPECT_EQ(to, "/control/journal");
    if (m.end.reason != proto::finish_reason::none) {
      EXPECT_EQ(m.end.reason, proto::finish_reason::stop);
      EXPECT_EQ(m.tokens.back(), 102);
      ++ends;
    }
  }
  EXPECT_EQ(ends, 2);
}

TEST(rank_core, keeps_a_withdrawn_sequence_until_its_step_is_over) {
  rank_core core = make_core();
  outbox out;
  ASSERT_TRUE(core.on(ask(1, 3, 5), {}, out));
  core.launch({}, out);
  ASSERT_TRUE(core.on(proto::withdraw_request{request_id{1}, 1}, {}, out));
  EXPECT_EQ(only<proto::request_settled>(out).request, request_id{1});
  core.check();
  EXPECT_EQ(core.kv().sequences(), 1U);
  out.take();
  draw(core);
  EXPECT_EQ(core.kv().sequences(), 0U); // within the step, settled or not
  EXPECT_TRUE(core.finish({}, out).empty());
  EXPECT_TRUE(sent<proto::tokens_committed>(out).empty());
  core.check();
}

TEST(rank_core, ends_the_sequences_of_a_failed_step_and_lives_on) {
  rank_core core = make_core();
  outbox out;
  ASSERT_TRUE(core.on(ask(1, 3, 5), {}, out));
  core.launch({}, out);
  ASSERT_TRUE(core.on(ask(2, 3, 5), {}, out));
  core.fail_step({ec::internal, "no such kernel"}, {}, out);
  const auto commit = only<proto::tokens_committed>(out);
  EXPECT_EQ(commit.request, request_id{1});
  EXPECT_EQ(commit.end.reason, proto::finish_reason::error);
  EXPECT_EQ(commit.end.what, "no such kernel");
  EXPECT_EQ(step(core, out), std::vector<token_id>{100});
}

/// JOURNAL has everything that was sent.
void acknowledge(rank_core& core, outbox& out) {
  const auto commits = sent<proto::tokens_committed>(out);
  out.take();
  for (const auto& [to, m] : commits)
    ASSERT_TRUE(
        core.on(proto::commit_accepted{m.request, m.choice, m.attempt,
                                       m.first_index + static_cast<std::uint32_t>(m.tokens.size()),
                                       m.end.reason != proto::finish_reason::none},
                {}, out));
}

TEST(rank_core, starts_no_more_than_its_pages_hold) {
  rank_options o = small_rank();
  o.kv_tokens = 60;
  rank_core core = make_core(o);
  outbox out;
  for (std::uint64_t id = 1; id <= 4; ++id)
    ASSERT_TRUE(core.on(ask(id, 11, 10), {}, out)); // 21 tokens: two pages of ten, later three
  step(core, out);
  EXPECT_EQ(core.running(), 2U); // and two pages to grow into
  EXPECT_EQ(core.waiting(), 2U);
  for (int i = 0; i < 60; ++i) {
    acknowledge(core, out);
    if (core.has_work())
      step(core, out);
  }
  EXPECT_EQ(core.running() + core.waiting(), 0U);
  EXPECT_EQ(core.kv().tokens_free(), 60U);
}

TEST(rank_core, preempts_the_newest_and_computes_its_tokens_again) {
  rank_options o = small_rank();
  o.kv_tokens = 60;
  o.step_rows = 40;
  rank_core core = make_core(o);
  outbox out;
  ASSERT_TRUE(core.on(ask(1, 15, 30), {}, out));
  ASSERT_TRUE(core.on(ask(2, 15, 30), {}, out)); // both grow to five pages, there are six
  bool again = false;
  std::map<std::uint64_t, std::vector<token_id>> got;
  for (int i = 0; i < 100 && core.requests() > 0; ++i) {
    for (const auto& [to, m] : sent<proto::tokens_committed>(out))
      got[m.request.v].insert(got[m.request.v].end(), m.tokens.begin(), m.tokens.end());
    acknowledge(core, out);
    if (!core.has_work())
      continue;
    for (const planned_segment& s : core.launch({}, out).segments)
      if (core.request_of(s.sequence) == request_id{2} && s.first_position == 0
          && s.tokens.size() > 15) {
        again = true; // prompt, then what was drawn before
        EXPECT_EQ(s.tokens[14], 1);
        for (std::size_t t = 15; t < s.tokens.size(); ++t)
          EXPECT_EQ(s.tokens[t], 100 + static_cast<token_id>(t - 15));
        EXPECT_TRUE(s.draws);
      }
    draw(core);
    core.finish({}, out);
    core.check();
  }
  EXPECT_TRUE(again);
  EXPECT_EQ(core.preemptions(), 1U);
  ASSERT_EQ(got.size(), 2U);
  for (const auto& [id, tokens] : got) {
    ASSERT_EQ(tokens.size(), 30U);
    for (std::size_t t = 0; t < tokens.size(); ++t)
      EXPECT_EQ(tokens[t], 100 + static_cast<token_id>(t));
  }
}

TEST(rank_core, launches_the_next_step_before_it_settles_the_last) {
  rank_options o = small_rank();
  o.steps_in_flight = 2;
  rank_core core = make_core(o, 102);
  outbox out;
  ASSERT_TRUE(core.on(ask(1, 2, 50), {}, out));
  core.launch({}, out);
  for (token_id t = 100; t <= 102; ++t) {
    core.plan({}); // what the step that is out will draw is not known yet
    draw(core);
    const step_plan& next = core.launch({}, out);
    ASSERT_EQ(next.segments.size(), 1U);
    EXPECT_EQ(next.segments[0].tokens, std::vector<token_id>{t});
    core.check();
    EXPECT_EQ(core.finish({}, out), std::vector<token_id>{t});
    core.check();
  }
  // Token 102 was the end: the row behind it is lost, its KV free when its step ends.
  EXPECT_EQ(core.running(), 0U);
  EXPECT_EQ(core.kv().sequences(), 1U);
  draw(core);
  EXPECT_EQ(core.kv().sequences(), 0U);
  EXPECT_TRUE(core.finish({}, out).empty());
  EXPECT_FALSE(core.has_work());
}

TEST(rank_core, plans_no_row_behind_a_token_that_is_certainly_the_last) {
  rank_options o = small_rank();
  o.steps_in_flight = 2;
  rank_core core = make_core(o);
  outbox out;
  ASSERT_TRUE(core.on(ask(1, 2, 1), {}, out));
  core.launch({}, out);
  core.plan({});
  draw(core);
  EXPECT_TRUE(core.launch({}, out).segments.empty());
  EXPECT_EQ(core.finish({}, out), std::vector<token_id>{100});
  core.check();
}

TEST(rank_core, drops_an_attempt_that_journal_refuses) {
  rank_core core = make_core();
  outbox out;
  ASSERT_TRUE(core.on(ask(1, 3, 5), {}, out));
  step(core, out);
  ASSERT_TRUE(core.on(proto::commit_refused{request_id{1}, 2, 3}, {}, out)); // not ours
  EXPECT_EQ(core.running(), 1U);
  ASSERT_TRUE(core.on(proto::commit_refused{request_id{1}, 1, 2}, {}, out));
  EXPECT_EQ(core.running(), 0U);
  EXPECT_EQ(core.kv().sequences(), 0U);
  core.check();
}

/// Counts pages, and remembers which attempts are over.
class noting_ledger final : public counted_ledger {
public:
  using counted_ledger::counted_ledger;
  void over(request_id request, std::uint32_t attempt) override {
    attempts.emplace_back(request.v, attempt);
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> attempts;
};

TEST(rank_core, tells_its_kv_and_kv_agent_that_an_attempt_is_over_even_if_it_never_began) {
  rank_options o = small_rank();
  o.kv_agent = "/rank/3/kv_agent";
  noting_ledger kv{o.kv_tokens, o.page_tokens};
  rank_core core{o,
                 [](const proto::request_spec&, std::uint32_t) {
                   return result<std::unique_ptr<choice_sampler>>{
                       std::make_unique<counting_sampler>(-1)};
                 },
                 &kv};
  outbox out;
  ASSERT_TRUE(core.on(ask(1, 3, 5), {}, out));
  ASSERT_TRUE(core.on(proto::withdraw_request{request_id{1}, 1}, {}, out)); // still waits
  EXPECT_EQ(kv.attempts, (std::vector<std::pair<std::uint64_t, std::uint32_t>>{{1, 1}}));
  EXPECT_EQ(sent<proto::release_pages>(out).size(), 1U);
  out.take();
  ASSERT_TRUE(core.on(proto::withdraw_request{request_id{2}, 4}, {}, out)); // it restores elsewhere
  const auto released = only<proto::release_pages>(out);
  EXPECT_EQ(released.lease.request, request_id{2});
  EXPECT_EQ(released.lease.attempt, 4U);
}

} // namespace
} // namespace di::engine
