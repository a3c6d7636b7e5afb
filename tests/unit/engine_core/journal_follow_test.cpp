// SPDX-License-Identifier: Apache-2.0
// Who follows a request at JOURNAL, and how long it is kept.
#include "engine/core/journal_core.hpp"
#include "tests/support/sent_mail.hpp"
#include "tests/support/small_requests.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

using test::sent;
using namespace std::chrono_literals;

proto::open_request opening(std::uint64_t id, std::uint64_t keep_ms = 0,
                            std::uint64_t detached_ms = 0) {
  proto::open_request m;
  m.spec = test::request(id);
  m.note = "note";
  m.keep_ms = keep_ms;
  m.detached_ms = detached_ms;
  return m;
}

struct journal_follow : ::testing::Test {
  journal_options options;
  std::unique_ptr<journal_core> core;
  outbox out;
  instant now{1'000'000};

  void begin() {
    core = std::make_unique<journal_core>(options);
    core->start(now, out);
  }
  template <class M>
  void tell(const M& m) {
    ASSERT_TRUE(core->on(m, now, out));
    core->check();
  }
  void pass(duration span) { now = now + span; }
  void due(timer which) {
    ASSERT_TRUE(core->on_due(which, now, out));
    core->check();
  }
  void complete(std::uint64_t id) { tell(test::tokens(id, 0, {7, 8}, true)); }
  void acknowledge(std::uint64_t id) {
    tell(proto::release_acknowledged{request_id{id}, 0, 2, true});
  }
  bool known(std::uint64_t id) {
    return core->on(proto::get_request{request_id{id}}, now, out)->known;
  }
  template <class A>
  std::optional<A> replied() {
    for (const any_effect& e : out.effects())
      if (const auto* r = std::get_if<effect::reply>(&e))
        if (const A* a = r->body.template as<A>())
          return *a;
    return std::nullopt;
  }
  proto::request_attached attach(std::uint64_t id, const address& gateway,
                                 std::vector<std::uint32_t> from = {}, bool brief = false) {
    out.take();
    EXPECT_TRUE(core->on(proto::attach_request{request_id{id}, gateway, std::move(from), brief},
                         reply_to{gateway, 5}, now, out));
    core->check();
    return replied<proto::request_attached>().value_or(proto::request_attached{});
  }
};

TEST_F(journal_follow, attaching_moves_a_request_and_sends_it_from_an_index) {
  begin();
  tell(opening(1));
  tell(test::tokens(1, 0, {7, 8, 9}));
  pass(40ms);
  const auto answer = attach(1, "/gateway/1", {1});
  EXPECT_TRUE(answer.known);
  EXPECT_EQ(answer.note, "note");
  EXPECT_EQ(answer.age_ms, 40U);
  EXPECT_EQ(answer.spec.gateway, "/gateway/1");
  const auto old = sent<proto::request_taken_over>(out);
  ASSERT_EQ(old.size(), 1U);
  EXPECT_EQ(old[0].first, "/gateway/0");
  const auto released = sent<proto::tokens_released>(out);
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].first, "/gateway/1");
  EXPECT_EQ(released[0].second.first_index, 1U);
  EXPECT_EQ(released[0].second.tokens, (std::vector<token_id>{8, 9}));
  EXPECT_FALSE(attach(77, "/gateway/1").known);
}

TEST_F(journal_follow, who_only_says_that_it_follows_takes_nothing_from_another) {
  begin();
  tell(opening(1));
  attach(1, "/gateway/1");
  attach(1, "/gateway/0", {}, true);
  const auto told = sent<proto::request_taken_over>(out);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].first, "/gateway/0");
  out.take();
  tell(test::tokens(1, 0, {7}));
  EXPECT_EQ(sent<proto::tokens_released>(out)[0].first, "/gateway/1");
}

TEST_F(journal_follow, a_client_that_left_for_good_cancels_its_request_at_once) {
  begin();
  tell(opening(1));
  out.take();
  tell(proto::detach_request{request_id{1}, "/gateway/1"}); // of another gateway
  EXPECT_TRUE(known(1));
  tell(proto::detach_request{request_id{1}, "/gateway/0"});
  const auto released = sent<proto::release_request>(out);
  ASSERT_EQ(released.size(), 1U);
  EXPECT_TRUE(released[0].second.withdraw);
  EXPECT_FALSE(known(1));
}

TEST_F(journal_follow, a_detached_request_goes_on_for_its_time) {
  begin();
  tell(opening(1, 0, 2'000));
  tell(test::tokens(1, 0, {7}));
  tell(proto::detach_request{request_id{1}, "/gateway/0"});
  out.take();
  tell(test::tokens(1, 1, {8}));
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
  EXPECT_EQ(sent<proto::commit_accepted>(out).size(), 1U);
  pass(2s);
  due({3, 1});
  EXPECT_EQ(sent<proto::release_request>(out).size(), 1U);
  EXPECT_TRUE(known(1)); // as cancelled, for as long again
  pass(3s);
  due({4, 1});
  EXPECT_FALSE(known(1));
}

TEST_F(journal_follow, requests_are_kept_for_their_time_and_the_oldest_make_way) {
  options.stored_bytes_max = 700;
  begin();
  for (std::uint64_t id = 1; id <= 3; ++id) {
    tell(opening(id, 10'000));
    complete(id);
    acknowledge(id);
    pass(1ms);
  }
  EXPECT_FALSE(known(1));
  EXPECT_TRUE(known(2));
  EXPECT_TRUE(known(3));
  EXPECT_EQ(core->on(proto::get_journal{})->stored, 2U);
  EXPECT_LE(core->on(proto::get_journal{})->stored_bytes, 700U);
  pass(11s);
  due({4, 2});
  EXPECT_FALSE(known(2));
  EXPECT_TRUE(known(3));
}

TEST_F(journal_follow, the_same_key_is_the_same_request_until_it_is_forgotten) {
  begin();
  auto first = opening(1, 10'000);
  first.dedup = "key";
  first.dedup_digest = "a";
  tell(first);
  complete(1);
  acknowledge(1);
  out.take();
  auto again = first;
  again.spec.request = request_id{2};
  tell(again);
  const auto told = sent<proto::request_known>(out);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].second.known, request_id{1});
  EXPECT_TRUE(told[0].second.same);
  EXPECT_FALSE(known(2));
  again.dedup_digest = "b";
  out.take();
  tell(again);
  EXPECT_FALSE(sent<proto::request_known>(out)[0].second.same);
  out.take();
  ASSERT_TRUE(core->on(proto::forget_request{request_id{1}}, reply_to{"/gateway/0", 9}, now, out));
  EXPECT_TRUE(replied<proto::request_forgotten>()->existed);
  tell(again);
  EXPECT_TRUE(known(2));
}

TEST_F(journal_follow, a_try_that_came_to_nothing_may_be_tried_again) {
  begin();
  auto first = opening(1, 10'000);
  first.dedup = "key";
  tell(first);
  tell(proto::admission_refused{request_id{1}, 1, ec::unavailable, "the queue is full"});
  auto again = first;
  again.spec.request = request_id{2};
  tell(again);
  EXPECT_TRUE(known(2));
  out.take();
  again.spec.request = request_id{3};
  tell(again);
  EXPECT_EQ(sent<proto::request_known>(out)[0].second.known, request_id{2});
}

TEST_F(journal_follow, a_key_is_the_try_that_succeeded_whatever_the_numbers_and_restarts) {
  begin();
  auto first = opening(5, 10'000);
  first.dedup = "key";
  tell(first);
  const journal_image before = core->image(now); // as the log says it of the first one
  tell(proto::admission_refused{request_id{5}, 1, ec::unavailable, "the queue is full"});
  auto again = first;
  again.spec.request = request_id{2}; // numbers are random
  tell(again);
  complete(2);
  acknowledge(2);
  journal_image log = core->image(now);
  log.requests.at(request_id{5}).dedup = before.requests.at(request_id{5}).dedup;
  options.recovered = std::move(log);
  begin();
  core->check();
  out.take();
  again.spec.request = request_id{3};
  tell(again);
  ASSERT_EQ(sent<proto::request_known>(out).size(), 1U);
  EXPECT_EQ(sent<proto::request_known>(out)[0].second.known, request_id{2});
  EXPECT_EQ(core->image(now).requests.at(request_id{5}).dedup, "");
}

TEST_F(journal_follow, an_end_that_gateway_found_ends_the_choice_on_its_rank) {
  begin();
  tell(opening(1));
  tell(proto::request_admitted{request_id{1}, 1, true, rank_id{2}, incarnation{}});
  tell(test::tokens(1, 0, {7, 8, 9}));
  out.take();
  tell(proto::end_choice{request_id{1}, 0, 2, 1});
  const auto accepted = sent<proto::commit_accepted>(out);
  ASSERT_EQ(accepted.size(), 1U);
  EXPECT_EQ(accepted[0].first, "/rank/2/rank");
  EXPECT_TRUE(accepted[0].second.ended);
  const auto end = sent<proto::tokens_released>(out)[0].second.end;
  EXPECT_EQ(end.reason, proto::finish_reason::stop);
  EXPECT_EQ(end.kept_tokens, 2U);
  EXPECT_EQ(end.stop_index, 1);
  EXPECT_TRUE(sent<proto::release_request>(out)[0].second.withdraw);
  out.take();
  tell(test::tokens(1, 3, {10})); // on its way since before
  EXPECT_TRUE(sent<proto::commit_accepted>(out)[0].second.ended);
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
}

TEST_F(journal_follow, another_life_of_a_gateway_detaches_what_the_one_before_had) {
  begin();
  tell(proto::gateway_started{"/gateway/0", incarnation{1}});
  tell(opening(1));
  tell(opening(2, 0, 5'000));
  tell(proto::gateway_started{"/gateway/0", incarnation{1}}); // said again
  EXPECT_TRUE(known(1));
  tell(proto::gateway_started{"/gateway/0", incarnation{2}});
  EXPECT_FALSE(known(1));
  EXPECT_TRUE(known(2));
  attach(2, "/gateway/0");
  tell(proto::withdrawn{"/gateway/1", incarnation{2}, "killed"});
  tell(proto::withdrawn{"/gateway/0", incarnation{1}, "killed"});
  EXPECT_EQ(core->on(proto::get_journal{})->detached, 0U);
  tell(proto::withdrawn{"/gateway/0", incarnation{2}, "killed"});
  EXPECT_EQ(core->on(proto::get_journal{})->detached, 1U);
}

TEST_F(journal_follow, a_cancelled_request_is_confirmed_to_whoever_asked) {
  begin();
  tell(opening(1));
  out.take();
  for (const std::uint64_t id : {1, 9}) {
    ASSERT_TRUE(
        core->on(proto::cancel_request{request_id{id}}, origin{"/gateway/1", {}, {}}, now, out));
    const auto told = sent<proto::request_closed>(out);
    ASSERT_EQ(told.size(), 1U) << id;
    EXPECT_EQ(told[0].first, "/gateway/1");
    out.take();
  }
}

TEST_F(journal_follow, the_next_life_of_control_goes_on_counting) {
  begin();
  auto stored = opening(1, 10'000);
  stored.dedup = "key";
  tell(stored);
  complete(1);
  acknowledge(1);
  tell(opening(2, 0, 60'000));
  tell(test::tokens(2, 0, {7}));
  pass(6s);
  options.recovered = core->image(now);
  now = instant{5};
  out.take();
  begin();
  core->check();
  EXPECT_TRUE(known(1));
  const auto answer = core->on(proto::get_request{request_id{1}}, now, out);
  EXPECT_EQ(answer->note, "note");
  EXPECT_EQ(answer->age_ms, 6'000U);
  // Nobody has attached to the second one yet: nothing is sent.
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
  EXPECT_EQ(core->on(proto::get_journal{})->detached, 1U);
  attach(2, "/gateway/0", {1});
  EXPECT_EQ(core->on(proto::get_journal{})->detached, 0U);
  // 6 of the 10 s are over.
  std::optional<duration> left;
  outbox again;
  options.recovered = core->image(now);
  journal_core next{options};
  next.start(now, again);
  for (const any_effect& e : again.effects())
    if (const auto* arm = std::get_if<effect::arm>(&e); arm && arm->which == timer{4, 1})
      left = arm->after;
  ASSERT_TRUE(left.has_value());
  EXPECT_NEAR(static_cast<double>(*left / 1ms), 4'000, 10);
  EXPECT_EQ(next.image(now).requests.at(request_id{1}).dedup, "key");
}

TEST_F(journal_follow, cached_tokens_are_those_of_the_first_attempt) {
  begin();
  tell(opening(1));
  auto m = test::tokens(1, 0, {7});
  m.cached_tokens = 128;
  tell(m);
  m = test::tokens(1, 1, {8});
  m.cached_tokens = 3;
  out.take();
  tell(m);
  EXPECT_EQ(sent<proto::tokens_released>(out)[0].second.cached_tokens, 128U);
}

} // namespace
} // namespace di::engine
