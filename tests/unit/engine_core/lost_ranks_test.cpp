// SPDX-License-Identifier: Apache-2.0
// SCHEDULER and JOURNAL when ranks leave the view: whose requests go on where, as which attempt.
#include "engine/core/expert_shard_core.hpp" // rank_path
#include "engine/core/journal_core.hpp"
#include "engine/core/scheduler_core.hpp"
#include "tests/support/sent_mail.hpp"
#include "tests/support/small_requests.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

using test::only;
using test::request;
using test::sent;
using test::tokens;
using test::two_ranks;

proto::view_committed view_of(std::uint64_t number, const std::vector<placed_rank>& ranks) {
  proto::view_committed m;
  m.view = epoch{number};
  for (const placed_rank& r : ranks)
    m.members.push_back({r.rank, {}, r.life, rank_path(r.rank)});
  return m;
}

const std::vector<placed_rank> first_rank{two_ranks[0]}, second_rank{two_ranks[1]};

proto::tokens_committed from(const placed_rank& who, proto::tokens_committed m) {
  m.rank = who.rank;
  m.life = who.life;
  return m;
}

TEST(journal_core, opens_the_next_attempt_of_what_was_placed_on_a_life_that_left) {
  journal_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(view_of(1, two_ranks), {}, out));
  for (std::uint64_t id = 1; id <= 4; ++id)
    ASSERT_TRUE(core.on(proto::open_request{request(id)}, {}, out));
  ASSERT_TRUE(core.on(from(two_ranks[0], tokens(1, 0, {7, 8})), {}, out));
  ASSERT_TRUE(core.on(from(two_ranks[1], tokens(2, 0, {9})), {}, out));
  const auto placed_on = [](std::uint64_t id, const placed_rank& r) {
    return proto::request_admitted{request_id{id}, 1, true, r.rank, r.life};
  };
  ASSERT_TRUE(core.on(placed_on(3, two_ranks[0]), {}, out)); // not a token yet
  ASSERT_TRUE(core.on(proto::request_admitted{request_id{4}, 1, false, {}, {}}, {}, out));
  out.take();
  ASSERT_TRUE(core.on(view_of(2, second_rank), {}, out));
  ASSERT_TRUE(core.on(view_of(1, two_ranks), {}, out)); // late
  const auto asked = sent<proto::admit_request>(out);
  ASSERT_EQ(asked.size(), 3U);
  EXPECT_EQ(asked[0].second.spec.request, request_id{1});
  EXPECT_EQ(asked[0].second.attempt, 2U);
  ASSERT_EQ(asked[0].second.progress.size(), 1U);
  EXPECT_EQ(asked[0].second.progress[0].tokens, (std::vector<token_id>{7, 8}));
  EXPECT_EQ(asked[1].second.spec.request, request_id{3});
  EXPECT_EQ(asked[1].second.attempt, 2U);
  EXPECT_EQ(asked[2].second.spec.request, request_id{4}) << "is it still queued?";
  EXPECT_EQ(asked[2].second.attempt, 1U);
  core.check();

  out.take(); // what the dead life still says is refused, and changes nothing
  ASSERT_TRUE(core.on(from(two_ranks[0], tokens(1, 2, {5})), {}, out));
  EXPECT_EQ(only<proto::commit_refused>(out).current, 2U);
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
  auto next = from(two_ranks[1], tokens(1, 2, {6}));
  next.attempt = 2;
  ASSERT_TRUE(core.on(next, {}, out));
  EXPECT_EQ(only<proto::tokens_released>(out).first_index, 2U);
  EXPECT_EQ(only<proto::tokens_released>(out).attempts, 2U);
}

TEST(journal_core, opens_the_next_attempt_when_the_placement_is_known_after_the_view) {
  journal_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(view_of(1, two_ranks), {}, out));
  ASSERT_TRUE(core.on(proto::open_request{request(1)}, {}, out));
  ASSERT_TRUE(core.on(proto::open_request{request(2)}, {}, out));
  ASSERT_TRUE(core.on(view_of(2, second_rank), {}, out));
  out.take();
  ASSERT_TRUE(
      core.on(proto::request_admitted{request_id{1}, 1, true, two_ranks[0].rank, two_ranks[0].life},
              {}, out));
  EXPECT_EQ(only<proto::admit_request>(out).attempt, 2U);
  out.take();
  ASSERT_TRUE(core.on(from(two_ranks[0], tokens(2, 0, {5})), {}, out)); // a zombie was faster
  EXPECT_EQ(only<proto::commit_refused>(out).current, 2U);
  EXPECT_EQ(only<proto::admit_request>(out).attempt, 2U);
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
  out.take(); // a life that is newer than the view that is known here is none that left
  ASSERT_TRUE(core.on(proto::request_admitted{request_id{2}, 2, true, rank_id{0}, incarnation{77}},
                      {}, out));
  EXPECT_TRUE(sent<proto::admit_request>(out).empty());
  core.check();
}

/// Control died before it had written who has the attempt; now two ranks have it.
TEST(journal_core, mixes_no_tokens_that_were_computed_behind_different_prefixes) {
  journal_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(view_of(1, two_ranks), {}, out));
  auto spec = request(1);
  spec.prefix = proto::prefix_mode::bounded;
  ASSERT_TRUE(core.on(proto::open_request{spec}, {}, out));
  auto first = from(two_ranks[0], tokens(1, 0, {7}));
  first.prefix_tokens = 256;
  ASSERT_TRUE(core.on(first, {}, out));
  out.take();
  ASSERT_TRUE(core.on(from(two_ranks[1], tokens(1, 0, {7, 9})), {}, out)); // behind no prefix
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
  EXPECT_EQ(sent<proto::commit_refused>(out).size(), 1U);
  const auto again = only<proto::admit_request>(out);
  EXPECT_EQ(again.attempt, 2U);
  EXPECT_EQ(again.spec.prefix_tokens, 256U);
  ASSERT_EQ(again.progress.size(), 1U);
  EXPECT_EQ(again.progress[0].tokens, (std::vector<token_id>{7}));
  core.check();
}

/// An earlier life accepted two tokens in memory alone.
TEST(journal_core, opens_the_next_attempt_when_a_rank_never_sends_what_is_missing) {
  journal_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(view_of(1, two_ranks), {}, out));
  ASSERT_TRUE(core.on(proto::open_request{request(1)}, {}, out));
  ASSERT_TRUE(core.on(from(two_ranks[0], tokens(1, 0, {7})), {}, out));
  out.take();
  const auto at = [](int s) { return instant{} + std::chrono::seconds{s}; };
  const auto ahead = from(two_ranks[0], tokens(1, 3, {5}));
  ASSERT_TRUE(core.on(ahead, at(1), out)); // mail may have been lost
  EXPECT_EQ(only<proto::commit_accepted>(out).next_index, 1U);
  ASSERT_TRUE(core.on(from(two_ranks[0], tokens(1, 1, {8})), at(5), out)); // it had been
  ASSERT_TRUE(core.on(ahead, at(7), out));
  ASSERT_TRUE(core.on(ahead, at(11), out));
  EXPECT_TRUE(sent<proto::admit_request>(out).empty());
  ASSERT_TRUE(core.on(ahead, at(12), out));
  const auto again = only<proto::admit_request>(out);
  EXPECT_EQ(again.attempt, 2U);
  ASSERT_EQ(again.progress.size(), 1U);
  EXPECT_EQ(again.progress[0].tokens, (std::vector<token_id>{7, 8}));
  core.check();
}

/// An earlier life accepted the end in memory alone, so that the rank has settled the attempt.
TEST(journal_core, opens_the_next_attempt_when_a_rank_has_settled_what_is_open) {
  journal_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(view_of(1, two_ranks), {}, out));
  ASSERT_TRUE(core.on(proto::open_request{request(1)}, {}, out));
  ASSERT_TRUE(core.on(from(two_ranks[0], tokens(1, 0, {7})), {}, out));
  out.take();
  const placed_rank had{two_ranks[0].rank, two_ranks[0].life};
  const proto::request_settled settled{request_id{1}, 1, had.rank, had.life};
  ASSERT_TRUE(core.on(settled, {}, out));
  const auto again = only<proto::admit_request>(out);
  EXPECT_EQ(again.attempt, 2U);
  ASSERT_EQ(again.progress.size(), 1U);
  EXPECT_EQ(again.progress[0].tokens, (std::vector<token_id>{7}));
  out.take();
  ASSERT_TRUE(core.on(settled, {}, out)); // late: of an attempt that is over
  EXPECT_TRUE(sent<proto::admit_request>(out).empty());
  ASSERT_TRUE(core.on(proto::cancel_request{request_id{1}}, {}, out));
  out.take();
  ASSERT_TRUE(core.on(proto::request_settled{request_id{1}, 2, had.rank, had.life}, {}, out));
  EXPECT_TRUE(sent<proto::admit_request>(out).empty());
  core.check();
}

TEST(scheduler_core, tells_journal_what_a_rank_has_settled) {
  scheduler_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(view_of(1, second_rank), {}, out));
  ASSERT_TRUE(core.on(proto::admit_request{request(1), 1, {}}, {}, out));
  const auto assigned = only<proto::assign_request>(out);
  out.take();
  const proto::request_settled settled{request_id{1}, 1, second_rank[0].rank, assigned.life};
  ASSERT_TRUE(core.on(settled, {}, out));
  EXPECT_EQ(only<proto::request_settled>(out).attempt, 1U);
  out.take();
  ASSERT_TRUE(core.on(settled, {}, out));
  EXPECT_TRUE(sent<proto::request_settled>(out).empty());
  ASSERT_TRUE(core.on(proto::admit_request{request(1), 2, {}}, {}, out));
  EXPECT_EQ(only<proto::assign_request>(out).attempt, 2U);
  core.check();
}

TEST(scheduler_core, keeps_its_queue_and_forgets_what_a_lost_rank_had) {
  scheduler_options options;
  options.assigned_per_rank_max = 1;
  scheduler_core core{options};
  outbox out;
  ASSERT_TRUE(core.on(view_of(1, two_ranks), {}, out));
  for (std::uint64_t id = 1; id <= 3; ++id)
    ASSERT_TRUE(core.on(proto::admit_request{request(id), 1, {}}, {}, out));
  EXPECT_EQ(sent<proto::assign_request>(out).size(), 2U);
  out.take();
  ASSERT_TRUE(core.on(view_of(2, second_rank), {}, out));
  EXPECT_EQ(core.on(proto::get_schedule{})->queued, 1U);
  EXPECT_TRUE(sent<proto::assign_request>(out).empty());
  core.check();
  proto::admit_request again{request(1), 2, {{0, {7, 8}, false}}};
  ASSERT_TRUE(core.on(again, {}, out));
  ASSERT_TRUE(
      core.on(proto::request_settled{request_id{2}, 1, rank_id{1}, incarnation{11}}, {}, out));
  const auto assigned = only<proto::assign_request>(out);
  EXPECT_EQ(assigned.spec.request, request_id{1}) << "who comes back goes first";
  EXPECT_EQ(assigned.view, epoch{2});
  EXPECT_EQ(assigned.progress[0].tokens.size(), 2U);
  core.check();
}

TEST(scheduler_core, asks_a_rank_that_knows_a_newer_view_again_and_nobody_else) {
  scheduler_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(view_of(1, two_ranks), {}, out));
  ASSERT_TRUE(core.on(proto::admit_request{request(1), 1, {}}, {}, out));
  const address first = sent<proto::assign_request>(out).at(0).first;
  const placed_rank& r = two_ranks[first == "/rank/0/rank" ? 0 : 1];
  out.take();
  ASSERT_TRUE(core.on(
      proto::assignment_refused{request_id{1}, 1, r.rank, r.life, ec::stale_epoch, "view 2"}, {},
      out));
  EXPECT_TRUE(out.effects().empty()) << "it waits for that view";
  EXPECT_EQ(core.on(proto::get_schedule{})->queued, 0U);
  ASSERT_TRUE(core.on(view_of(2, two_ranks), {}, out));
  ASSERT_EQ(sent<proto::assign_request>(out).size(), 1U);
  EXPECT_EQ(sent<proto::assign_request>(out)[0].first, first);
  EXPECT_EQ(only<proto::assign_request>(out).view, epoch{2});
  out.take();
  // The refusal of the first one, repeated: the second may have been taken.
  ASSERT_TRUE(core.on(
      proto::assignment_refused{request_id{1}, 1, r.rank, r.life, ec::stale_epoch, "view 2"}, {},
      out));
  EXPECT_EQ(core.on(proto::get_schedule{})->queued, 0U);
  core.check();
}

TEST(scheduler_core, gives_a_request_back_to_the_life_that_has_it) {
  scheduler_core core{{}};
  outbox out;
  proto::admit_request named{request(1), 1, {}};
  named.placed_rank = two_ranks[1].rank;
  named.placed_life = two_ranks[1].life;
  ASSERT_TRUE(core.on(named, {}, out)); // before the first view
  proto::admit_request gone{request(2), 1, {}};
  gone.placed_rank = rank_id{0};
  gone.placed_life = incarnation{5};
  ASSERT_TRUE(core.on(gone, {}, out));
  out.take();
  ASSERT_TRUE(core.on(view_of(4, two_ranks), {}, out));
  EXPECT_EQ(sent<proto::assign_request>(out)[0].first, "/rank/1/rank");
  EXPECT_EQ(sent<proto::assign_request>(out).size(), 1U) << "its life is gone: not to anybody else";
  EXPECT_EQ(core.on(proto::get_schedule{})->queued, 0U);
  core.check();
  out.take();
  ASSERT_TRUE(core.on(gone, {}, out));
  EXPECT_TRUE(out.effects().empty()) << "JOURNAL opens its next attempt";
  ASSERT_TRUE(core.on(proto::assignment_refused{request_id{1}, 1, two_ranks[1].rank,
                                                two_ranks[1].life, ec::unavailable, "draining"},
                      {}, out));
  EXPECT_EQ(sent<proto::assign_request>(out)[0].first, "/rank/0/rank") << "it has it not";
  core.check();
}

TEST(scheduler_core, takes_back_more_than_its_queue_holds) {
  scheduler_options options;
  options.queue_max = 1;
  scheduler_core core{options};
  outbox out;
  for (std::uint64_t id = 1; id <= 3; ++id) { // JOURNAL, in a new life: ranks compute these
    proto::admit_request named{request(id), 1, {}};
    named.placed_rank = two_ranks[1].rank;
    named.placed_life = two_ranks[1].life;
    ASSERT_TRUE(core.on(named, {}, out));
  }
  ASSERT_TRUE(core.on(proto::admit_request{request(4), 1, {}}, {}, out));
  EXPECT_TRUE(sent<proto::admission_refused>(out).empty());
  ASSERT_TRUE(core.on(proto::admit_request{request(5), 1, {}}, {}, out));
  EXPECT_EQ(only<proto::admission_refused>(out).request, request_id{5});
  out.take();
  ASSERT_TRUE(core.on(view_of(4, two_ranks), {}, out));
  EXPECT_EQ(sent<proto::assign_request>(out).size(), 4U);
  core.check();
}

} // namespace
} // namespace di::engine
