// SPDX-License-Identifier: Apache-2.0
// Decisions of SCHEDULER, JOURNAL, GATEWAY and REBALANCER.
#include "engine/core/gateway_core.hpp"
#include "engine/core/journal_core.hpp"
#include "engine/core/rebalancer_core.hpp"
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

TEST(scheduler_core, gives_requests_to_the_least_loaded_rank) {
  scheduler_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(proto::admit_request{request(1), 1, {}}, {}, out));
  EXPECT_TRUE(sent<proto::assign_request>(out).empty()); // no rank yet: queued
  EXPECT_FALSE(only<proto::request_admitted>(out).placed);
  core.install_view(epoch{1}, two_ranks, {}, out);
  for (std::uint64_t id = 2; id <= 4; ++id)
    ASSERT_TRUE(core.on(proto::admit_request{request(id), 1, {}}, {}, out));
  const auto assigned = sent<proto::assign_request>(out);
  ASSERT_EQ(assigned.size(), 4U);
  EXPECT_EQ(assigned[0].first, "/rank/0/rank");
  EXPECT_EQ(assigned[1].first, "/rank/1/rank");
  EXPECT_EQ(assigned[2].first, "/rank/0/rank");
  EXPECT_EQ(assigned[0].second.life, incarnation{10});
  core.check();
  out.take();
  ASSERT_TRUE(
      core.on(proto::request_settled{request_id{2}, 1, rank_id{1}, incarnation{11}}, {}, out));
  ASSERT_TRUE(
      core.on(proto::request_settled{request_id{4}, 1, rank_id{1}, incarnation{99}}, {}, out));
  ASSERT_TRUE(core.on(proto::admit_request{request(5), 1, {}}, {}, out));
  EXPECT_EQ(sent<proto::assign_request>(out)[0].first, "/rank/1/rank");
  const auto s = core.on(proto::get_schedule{}).value();
  EXPECT_EQ(s.assigned, (std::vector<std::uint32_t>{2, 2}));
  core.check();
}

TEST(scheduler_core, tries_another_rank_and_then_refuses) {
  scheduler_core core{{}};
  outbox out;
  core.install_view(epoch{1}, two_ranks, {}, out);
  ASSERT_TRUE(core.on(proto::admit_request{request(1), 1, {}}, {}, out));
  out.take();
  const auto refuse = [&](std::uint32_t rank, ec code) {
    ASSERT_TRUE(core.on(proto::assignment_refused{request_id{1}, 1, rank_id{rank},
                                                  incarnation{10 + rank}, code, "full"},
                        {}, out));
    core.check();
  };
  refuse(0, ec::unavailable);
  EXPECT_EQ(sent<proto::assign_request>(out)[0].first, "/rank/1/rank");
  out.take();
  refuse(1, ec::unavailable);
  EXPECT_TRUE(out.take().empty()) << "it waits until one of them has room";
  ASSERT_TRUE(core.on(proto::release_request{request_id{1}, false}, {}, out));
  out.take();
  ASSERT_TRUE(core.on(proto::admit_request{request(1), 1, {}}, {}, out));
  out.take();
  refuse(0, ec::context_exceeded); // no rank would do it
  EXPECT_EQ(only<proto::admission_refused>(out).code, ec::context_exceeded);
}

TEST(scheduler_core, bounds_its_queue_and_repeats_what_was_not_taken) {
  scheduler_options o;
  o.queue_max = 1;
  scheduler_core core{o};
  outbox out;
  ASSERT_TRUE(core.on(proto::admit_request{request(1), 1, {}}, {}, out));
  ASSERT_TRUE(core.on(proto::admit_request{request(2), 1, {}}, {}, out));
  EXPECT_EQ(only<proto::admission_refused>(out).code, ec::unavailable);
  out.take();
  core.install_view(epoch{1}, two_ranks, {}, out);
  EXPECT_TRUE(test::armed(out));
  out.take();
  const instant later = instant{} + std::chrono::seconds{1};
  ASSERT_TRUE(core.on_due({1, 0}, later, out));
  EXPECT_EQ(sent<proto::assign_request>(out).size(), 1U);
  out.take();
  ASSERT_TRUE(
      core.on(proto::request_taken{request_id{1}, 1, rank_id{0}, incarnation{10}}, {}, out));
  ASSERT_TRUE(core.on_due({1, 0}, later + std::chrono::seconds{1}, out));
  EXPECT_TRUE(sent<proto::assign_request>(out).empty());
  ASSERT_TRUE(core.on(proto::release_request{request_id{1}, true}, {}, out));
  EXPECT_EQ(sent<proto::withdraw_request>(out)[0].first, "/rank/0/rank");
  core.check();
}

TEST(scheduler_core, repeats_an_assignment_less_and_less_until_it_is_taken) {
  scheduler_core core{{}};
  outbox out;
  core.install_view(epoch{1}, two_ranks, {}, out);
  ASSERT_TRUE(core.on(proto::admit_request{request(1), 1, {}}, {}, out));
  out.take();
  instant now;
  for (int i = 0; i < 31; ++i) // 15.5 s
    ASSERT_TRUE(core.on_due({1, 0}, now = now + std::chrono::milliseconds{500}, out));
  EXPECT_EQ(sent<proto::assign_request>(out).size(), 5U); // after 0.5, 1.5, 3.5, 7.5, 15.5 s
}

TEST(journal_core, accepts_each_index_once) {
  journal_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(proto::open_request{request(1)}, {}, out));
  EXPECT_EQ(sent<proto::request_opened>(out)[0].first, "/gateway/0");
  EXPECT_EQ(only<proto::admit_request>(out).attempt, 1U);
  out.take();
  ASSERT_TRUE(core.on(tokens(1, 0, {7, 8}), {}, out));
  EXPECT_EQ(only<proto::commit_accepted>(out).next_index, 2U);
  EXPECT_EQ(only<proto::tokens_released>(out).tokens, (std::vector<token_id>{7, 8}));
  out.take();
  ASSERT_TRUE(core.on(tokens(1, 3, {9}), {}, out)); // a gap: nothing is taken
  EXPECT_EQ(only<proto::commit_accepted>(out).next_index, 2U);
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
  out.take();
  ASSERT_TRUE(core.on(tokens(1, 1, {8, 9}), {}, out)); // half of it known
  EXPECT_EQ(only<proto::tokens_released>(out).first_index, 2U);
  EXPECT_EQ(only<proto::tokens_released>(out).tokens, std::vector<token_id>{9});
  out.take();
  ASSERT_TRUE(core.on(tokens(1, 3, {10}, true), {}, out));
  EXPECT_TRUE(only<proto::commit_accepted>(out).ended);
  EXPECT_FALSE(only<proto::release_request>(out).withdraw);
  out.take();
  ASSERT_TRUE(core.on(tokens(1, 3, {10}, true), {}, out)); // sent again
  EXPECT_TRUE(only<proto::commit_accepted>(out).ended);
  core.check();
  ASSERT_TRUE(core.on(proto::release_acknowledged{request_id{1}, 0, 4, true}, {}, out));
  out.take();
  ASSERT_TRUE(core.on(tokens(1, 3, {10}, true), {}, out)); // forgotten by now
  EXPECT_EQ(only<proto::commit_refused>(out).current, 0U);
  out.take();
  ASSERT_TRUE(core.on(proto::open_request{request(1)}, {}, out)); // a late copy opens nothing
  EXPECT_EQ(out.effects().size(), 1U);
  EXPECT_EQ(only<proto::request_closed>(out).end.code, ec::duplicate);
  core.check();
}

TEST(journal_core, refuses_other_attempts_and_changed_tokens) {
  journal_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(proto::open_request{request(1)}, {}, out));
  auto old = tokens(1, 0, {7});
  old.attempt = 0;
  out.take();
  ASSERT_TRUE(core.on(old, {}, out));
  EXPECT_EQ(only<proto::commit_refused>(out).current, 1U);
  ASSERT_TRUE(core.on(tokens(1, 0, {7}), {}, out));
  out.take();
  ASSERT_TRUE(core.on(tokens(1, 0, {8}), {}, out));
  const auto end = only<proto::tokens_released>(out).end;
  EXPECT_EQ(end.code, ec::corrupt);
  EXPECT_TRUE(only<proto::release_request>(out).withdraw);
  core.check();
}

TEST(journal_core, records_the_bounded_hit_that_the_first_tokens_were_computed_behind) {
  journal_core core{{}};
  outbox out;
  auto spec = request(1);
  spec.prefix = proto::prefix_mode::bounded;
  ASSERT_TRUE(core.on(proto::open_request{spec}, {}, out));
  ASSERT_TRUE(core.on(proto::open_request{request(2)}, {}, out));
  EXPECT_FALSE(core.recorded(request_id{1})->prefix_recorded);
  auto first = tokens(1, 0, {7});
  first.prefix_tokens = 256;
  ASSERT_TRUE(core.on(first, {}, out));
  EXPECT_TRUE(core.recorded(request_id{1})->prefix_recorded);
  EXPECT_EQ(core.recorded(request_id{1})->prefix_tokens, 256U);
  ASSERT_TRUE(core.on(tokens(1, 1, {8}), {}, out)); // later words change nothing
  EXPECT_EQ(core.recorded(request_id{1})->prefix_tokens, 256U);
  ASSERT_TRUE(core.on(tokens(2, 0, {7}), {}, out));
  EXPECT_FALSE(core.recorded(request_id{2})->prefix_recorded) << "other modes have no such hit";
}

TEST(journal_core, closes_what_is_cancelled_or_not_admitted) {
  journal_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(proto::open_request{request(1, 2)}, {}, out));
  ASSERT_TRUE(core.on(proto::open_request{request(2)}, {}, out));
  out.take();
  ASSERT_TRUE(core.on(proto::cancel_request{request_id{1}}, {}, out));
  EXPECT_EQ(sent<proto::tokens_released>(out).size(), 2U);
  EXPECT_TRUE(only<proto::release_request>(out).withdraw);
  out.take();
  ASSERT_TRUE(core.on(tokens(1, 0, {7}), {}, out));
  EXPECT_EQ(only<proto::commit_refused>(out).current, 0U);
  out.take();
  ASSERT_TRUE(core.on(proto::admission_refused{request_id{2}, 1, ec::kv_exhausted, "no"}, {}, out));
  EXPECT_EQ(only<proto::tokens_released>(out).end.code, ec::kv_exhausted);
  EXPECT_EQ(core.on(proto::get_journal{}).value().closed, 2U);
  core.check();
}

TEST(journal_core, asks_for_admission_and_releases_again) {
  journal_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(proto::open_request{request(1)}, {}, out));
  out.take();
  instant now = instant{} + std::chrono::seconds{1};
  ASSERT_TRUE(core.on_due({1, 0}, now, out));
  EXPECT_EQ(sent<proto::admit_request>(out).size(), 1U);
  ASSERT_TRUE(core.on(proto::request_admitted{request_id{1}, 1, true, {}, {}}, now, out));
  ASSERT_TRUE(core.on(tokens(1, 0, {7}), now, out));
  out.take();
  now = now + std::chrono::seconds{1};
  ASSERT_TRUE(core.on_due({1, 0}, now, out));
  EXPECT_TRUE(sent<proto::admit_request>(out).empty());
  EXPECT_EQ(only<proto::tokens_released>(out).tokens.size(), 1U);
}

TEST(journal_core, repeats_itself_less_and_less_until_it_is_heard) {
  journal_core core{{}};
  outbox out;
  ASSERT_TRUE(core.on(proto::open_request{request(1)}, {}, out));
  ASSERT_TRUE(core.on(proto::request_admitted{request_id{1}, 1, true, {}, {}}, {}, out));
  ASSERT_TRUE(core.on(tokens(1, 0, {7}), {}, out));
  instant now;
  const auto ticks = [&](int n) { // of 250 ms
    out.take();
    for (int i = 0; i < n; ++i)
      EXPECT_TRUE(core.on_due({1, 0}, now = now + std::chrono::milliseconds{250}, out));
    return sent<proto::tokens_released>(out).size();
  };
  EXPECT_EQ(ticks(31), 5U); // after 0.25, 0.75, 1.75, 3.75, 7.75 s
  EXPECT_EQ(ticks(96), 3U); // and every 8 s from then on
  ASSERT_TRUE(core.on(proto::release_acknowledged{request_id{1}, 0, 1, false}, now, out));
  ASSERT_TRUE(core.on(tokens(1, 1, {8}), now, out));
  EXPECT_EQ(ticks(1), 1U);
}

TEST(journal_core, gives_up_what_is_past_its_deadline) {
  journal_core core{{}};
  outbox out;
  auto spec = request(1);
  spec.deadline_ms = 800;
  ASSERT_TRUE(core.on(proto::open_request{spec}, {}, out));
  ASSERT_TRUE(core.on(proto::request_admitted{request_id{1}, 1, true, {}, {}}, {}, out));
  ASSERT_TRUE(core.on_due({1, 0}, instant{} + std::chrono::milliseconds{799}, out));
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
  ASSERT_TRUE(core.on_due({1, 0}, instant{} + std::chrono::milliseconds{800}, out));
  EXPECT_EQ(only<proto::tokens_released>(out).end.code, ec::deadline_exceeded);
  EXPECT_TRUE(only<proto::release_request>(out).withdraw);
  core.check();
}

TEST(gateway_core, keeps_a_window_and_the_order_of_the_batch) {
  gateway_options o;
  o.window = 2;
  o.finished_to = "/control/main";
  gateway_core core{o, {request(1), request(2), request(3)}};
  outbox out;
  ASSERT_TRUE(core.on(proto::start_batch{}, {}, out));
  EXPECT_EQ(sent<proto::open_request>(out).size(), 2U);
  ASSERT_TRUE(core.on(proto::start_batch{}, {}, out)); // once
  EXPECT_EQ(sent<proto::open_request>(out).size(), 2U);
  const auto release = [&](std::uint64_t id, std::uint32_t first, std::vector<token_id> ids,
                           bool ended) {
    proto::tokens_released m;
    m.request = request_id{id};
    m.first_index = first;
    m.tokens = std::move(ids);
    if (ended)
      m.end.reason = proto::finish_reason::stop;
    ASSERT_TRUE(core.on(m, instant{} + std::chrono::milliseconds{3}, out));
    core.check();
  };
  out.take();
  release(2, 0, {5, 6}, false);
  EXPECT_EQ(only<proto::release_acknowledged>(out).next_index, 2U);
  release(2, 3, {8}, false); // a gap
  release(2, 1, {6, 7}, true);
  EXPECT_FALSE(core.take_finished()); // the first one is not done
  EXPECT_EQ(only<proto::open_request>(out).spec.request, request_id{3});
  release(1, 0, {}, true);
  EXPECT_EQ(core.take_finished()->at(0).tokens.size(), 0U);
  const auto second = core.take_finished();
  EXPECT_EQ(second->at(0).tokens, (std::vector<token_id>{5, 6, 7}));
  EXPECT_EQ(second->at(0).first_token_us, 3000U);
  ASSERT_TRUE(
      core.on(proto::request_closed{request_id{3},
                                    {proto::finish_reason::error, -1, 0, ec::unavailable, "full"}},
              {}, out));
  EXPECT_TRUE(core.done());
  EXPECT_EQ(only<proto::batch_finished>(out).failed, 1U);
  EXPECT_EQ(core.take_finished()->at(0).end.what, "full");
  EXPECT_FALSE(core.take_finished());
}

TEST(gateway_core, acknowledges_again_what_was_taken) {
  gateway_core core{{}, {request(1)}};
  outbox out;
  ASSERT_TRUE(core.on(proto::start_batch{}, {}, out));
  proto::tokens_released last;
  last.request = request_id{1};
  last.tokens = {4, 5};
  last.end.reason = proto::finish_reason::stop;
  ASSERT_TRUE(core.on(last, {}, out));
  ASSERT_TRUE(core.take_finished());
  out.take();
  ASSERT_TRUE(core.on(last, {}, out));
  const auto acknowledged = only<proto::release_acknowledged>(out);
  EXPECT_EQ(acknowledged.next_index, 2U);
  EXPECT_TRUE(acknowledged.ended);
  core.check();
}

TEST(gateway_core, begins_nothing_new_once_it_drains) {
  gateway_options o;
  o.window = 1;
  gateway_core core{o, {request(1), request(2), request(3)}};
  outbox out;
  ASSERT_TRUE(core.on(proto::start_batch{}, {}, out));
  ASSERT_TRUE(core.on(proto::drain_batch{}, {}, out));
  core.check();
  EXPECT_EQ(sent<proto::open_request>(out).size(), 1U);
  EXPECT_FALSE(core.done());
  proto::tokens_released last;
  last.request = request_id{1};
  last.tokens = {4};
  last.end.reason = proto::finish_reason::stop;
  ASSERT_TRUE(core.on(last, {}, out));
  core.check();
  EXPECT_TRUE(core.done());
  EXPECT_EQ(core.take_finished()->at(0).tokens.size(), 1U);
  EXPECT_EQ(core.take_finished()->at(0).end.code, ec::refused);
  EXPECT_EQ(core.state().failed, 2U);
}

TEST(gateway_core, asks_again_for_requests_that_were_not_opened) {
  gateway_core core{{}, {request(1), request(2)}};
  outbox out;
  ASSERT_TRUE(core.on(proto::start_batch{}, {}, out));
  ASSERT_TRUE(core.on(proto::request_opened{request_id{2}}, {}, out));
  out.take();
  ASSERT_TRUE(core.on_due({1, 0}, instant{} + std::chrono::seconds{1}, out));
  EXPECT_EQ(only<proto::open_request>(out).spec.request, request_id{1});
}

TEST(rebalancer_core, publishes_until_all_follow) {
  rebalancer_options o;
  o.groups = {{0, 2, 4}};
  rebalancer_core core{o};
  outbox out;
  ASSERT_TRUE(core.install_view(epoch{1}, two_ranks, {}, out));
  EXPECT_EQ(sent<proto::placement_published>(out).size(), 4U);
  const auto follow = [&](const address& who, std::uint64_t version) {
    const epoch in_view_1{(1U << 20) + version};
    ASSERT_TRUE(core.on(proto::placement_installed{who, in_view_1, {}}, {}, out));
    core.check();
  };
  follow("/rank/0/rank", 1);
  follow("/rank/0/expert_shard", 1);
  follow("/rank/1/rank", 1);
  follow("/rank/1/rank", 1);
  follow("/rank/1/expert_shard", 0); // another version
  EXPECT_FALSE(core.settled());
  out.take();
  ASSERT_TRUE(core.on_due({1, core.current().version().v}, {}, out));
  EXPECT_EQ(sent<proto::placement_published>(out)[0].first, "/rank/1/expert_shard");
  follow("/rank/1/expert_shard", 1);
  EXPECT_TRUE(core.settled());
  const auto settled = sent<proto::placement_settled>(out);
  ASSERT_EQ(settled.size(), 4U);
  EXPECT_EQ(settled[0].first, "/control/scheduler");
  EXPECT_EQ(settled[1].first, "/gateway/0");
  EXPECT_EQ(settled[2].first, "/rank/0/expert_shard");
  EXPECT_EQ(settled[3].first, "/rank/1/expert_shard");
  EXPECT_EQ(settled[0].second.lives.size(), 2U);
}

} // namespace
} // namespace di::engine
