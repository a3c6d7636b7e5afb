// SPDX-License-Identifier: Apache-2.0
// Decisions of the online GATEWAY, one at a time.
#include "engine/core/stream_gateway_core.hpp"
#include "tests/support/sent_mail.hpp"
#include "tests/support/small_requests.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

using test::sent;
using namespace std::chrono_literals;
namespace news = stream_news;

proto::open_request opening(std::uint64_t id, std::uint64_t detached_ms = 0) {
  proto::open_request m;
  m.spec = test::request(id);
  m.detached_ms = detached_ms;
  return m;
}

proto::tokens_released released(std::uint64_t id, std::uint32_t first, std::vector<token_id> ids,
                                bool ended = false) {
  proto::tokens_released m;
  m.request = request_id{id};
  m.first_index = first;
  m.tokens = std::move(ids);
  if (ended)
    m.end.reason = proto::finish_reason::length;
  return m;
}

struct stream_gateway : ::testing::Test {
  stream_gateway_options options;
  std::unique_ptr<stream_gateway_core> core;
  outbox out;
  instant now{1'000'000};

  void SetUp() override {
    options.life = incarnation{3};
    options.window = 2;
    options.waiting_max = 2;
    begin();
  }
  void begin() {
    core = std::make_unique<stream_gateway_core>(options);
    core->start(now, out);
  }
  template <class M>
  void tell(const M& m) {
    ASSERT_TRUE(core->on(m, now, out));
    core->check();
  }
  void open(std::uint64_t id, std::uint64_t detached_ms = 0) {
    core->submit(opening(id, detached_ms), now, out);
    tell(proto::request_opened{request_id{id}});
  }
  void tick(duration span = 250ms) {
    now = now + span;
    out.take();
    ASSERT_TRUE(core->on_due({1, 0}, now, out));
    core->check();
  }
  /// The last question that went out.
  std::uint64_t asked() const {
    std::uint64_t tag = 0;
    for (const any_effect& e : out.effects())
      if (const auto* r = std::get_if<effect::request>(&e))
        tag = r->tag;
    return tag;
  }
  template <class N>
  std::vector<N> heard() {
    std::vector<N> all;
    for (any_stream_news& n : core->take_news())
      if (N* one = std::get_if<N>(&n))
        all.push_back(std::move(*one));
    return all;
  }
};

TEST_F(stream_gateway, hears_the_recorded_end_of_what_it_stops) {
  core->submit(opening(1), now, out);
  tell(proto::request_opened{request_id{1}});
  out.take();
  core->stop(request_id{1}, now, out);
  core->stop(request_id{1}, now, out);
  EXPECT_EQ(sent<proto::cancel_request>(out).size(), 1U);
  EXPECT_TRUE(heard<news::ended>().empty());
  tick(); // nobody answered: again
  EXPECT_EQ(sent<proto::cancel_request>(out).size(), 1U);
  proto::tokens_released rest;
  rest.request = request_id{1};
  rest.tokens = {5};
  rest.end = {proto::finish_reason::cancelled, -1, 1, ec::cancelled, "cancelled by the client"};
  tell(rest);
  const auto said = heard<news::tokens>();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].m.tokens.size(), 1U);
  EXPECT_TRUE(said[0].last);
  tell(proto::request_closed{request_id{1}, {}, 0});
  EXPECT_TRUE(heard<news::ended>().empty());
  tick();
  EXPECT_TRUE(sent<proto::cancel_request>(out).empty());
}

TEST_F(stream_gateway, says_again_what_nobody_answers) {
  EXPECT_EQ(sent<proto::gateway_started>(out).size(), 1U);
  core->submit(opening(1), now, out);
  tick();
  EXPECT_EQ(sent<proto::open_request>(out).size(), 1U);
  tell(proto::request_opened{request_id{1}});
  tell(proto::request_opened{request_id{1}});
  EXPECT_EQ(heard<news::opened>().size(), 1U);
  tick();
  EXPECT_TRUE(sent<proto::open_request>(out).empty());
  core->cancel(request_id{1}, now, out);
  EXPECT_EQ(heard<news::ended>()[0].why.reason, proto::finish_reason::cancelled);
  tick();
  EXPECT_EQ(sent<proto::cancel_request>(out).size(), 1U);
  tell(proto::request_closed{request_id{1}, {}, 0});
  EXPECT_TRUE(heard<news::ended>().empty());
  tick();
  EXPECT_TRUE(sent<proto::cancel_request>(out).empty());
}

TEST_F(stream_gateway, tells_each_index_once_and_the_last_end_last) {
  open(1);
  tell(released(1, 0, {5, 6}));
  tell(released(1, 0, {5, 6, 7}));
  tell(released(1, 4, {9})); // a gap: it comes again
  tell(released(1, 2, {7, 8}, true));
  const auto told = heard<news::tokens>();
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(told[1].m.first_index, 2U);
  EXPECT_EQ(told[1].m.tokens, (std::vector<token_id>{7}));
  EXPECT_FALSE(told[1].last);
  EXPECT_EQ(told[2].m.tokens, (std::vector<token_id>{8}));
  EXPECT_TRUE(told[2].last);
  EXPECT_EQ(sent<proto::release_acknowledged>(out).back().second.next_index, 4U);
  EXPECT_TRUE(sent<proto::release_acknowledged>(out).back().second.ended);
  EXPECT_EQ(core->counts().finished, 1U);
}

TEST_F(stream_gateway, opens_no_more_than_its_window_and_refuses_beyond_its_queue) {
  for (std::uint64_t id = 1; id <= 5; ++id)
    core->submit(opening(id), now, out);
  core->check();
  EXPECT_EQ(sent<proto::open_request>(out).size(), 2U);
  const auto refused = heard<news::ended>();
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].request, request_id{5});
  EXPECT_EQ(refused[0].why.code, ec::unavailable);
  EXPECT_GT(refused[0].ask_again_ms, 0U);
  core->cancel(request_id{3}, now, out); // waits still: JOURNAL never hears of it
  core->leave(request_id{1}, now, out);
  core->check();
  EXPECT_EQ(sent<proto::open_request>(out).back().second.spec.request, request_id{4});
  for (const auto& [to, m] : sent<proto::cancel_request>(out))
    EXPECT_EQ(m.request, request_id{1});
}

TEST_F(stream_gateway, opens_what_waits_when_an_attach_fails) {
  open(1);
  open(2);
  core->submit(opening(3), now, out); // waits: the window is full
  core->attach(7, request_id{1}, {0}, now, out);
  const std::uint64_t tag = asked();
  out.take();
  ASSERT_TRUE(core->on_answer(tag, fail(ec::bad_argument, "no"), now, out));
  core->check();
  EXPECT_EQ(sent<proto::open_request>(out).size(), 1U);
}

TEST_F(stream_gateway, who_leaves_a_request_that_may_go_on_only_detaches_it) {
  core->submit(opening(1, 1'000), now, out);
  core->leave(request_id{1}, now, out);
  EXPECT_TRUE(sent<proto::detach_request>(out).empty()); // not opened yet
  tell(proto::request_opened{request_id{1}});
  EXPECT_EQ(sent<proto::detach_request>(out).size(), 1U);
  EXPECT_TRUE(sent<proto::cancel_request>(out).empty());
  EXPECT_TRUE(core->take_news().empty());
  out.take();
  tell(released(1, 0, {5})); // the word was lost
  EXPECT_EQ(sent<proto::detach_request>(out).size(), 1U);
}

TEST_F(stream_gateway, follows_a_request_from_where_its_client_is) {
  core->attach(7, request_id{1}, {2}, now, out);
  const std::uint64_t tag = asked();
  tell(released(1, 2, {7})); // before the answer: it comes again
  EXPECT_TRUE(core->take_news().empty());
  proto::request_attached answer;
  answer.request = request_id{1};
  answer.spec = test::request(1, 2);
  ASSERT_TRUE(core->on_answer(tag, parcel::of(answer), now, out));
  tell(released(1, 0, {5, 6, 7}));
  const auto told = heard<news::tokens>();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].m.first_index, 2U);
  tell(proto::request_taken_over{request_id{1}});
  EXPECT_EQ(heard<news::ended>()[0].why.code, ec::moved);
}

TEST_F(stream_gateway, asks_again_while_journal_is_away_and_gives_up_in_the_end) {
  core->get(4, request_id{1}, now, out);
  const std::uint64_t tag = asked();
  ASSERT_TRUE(core->on_answer(tag, fail(ec::not_found, "/control/journal is not here"), now, out));
  EXPECT_TRUE(core->take_news().empty());
  tick();
  EXPECT_EQ(asked(), tag);
  now = now + 21s;
  ASSERT_TRUE(core->on_answer(tag, fail(ec::peer_lost, "gone"), now, out));
  const auto told = heard<news::recorded>();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].answer.error().code, ec::unavailable);
  core->get(5, request_id{1}, now, out);
  proto::recorded_request nothing;
  nothing.known = false;
  ASSERT_TRUE(core->on_answer(asked(), parcel::of(nothing), now, out));
  EXPECT_EQ(heard<news::recorded>()[0].answer.error().code, ec::not_found);
}

TEST_F(stream_gateway, tells_a_new_life_of_control_what_it_follows) {
  open(1);
  tell(released(1, 0, {5, 6}));
  core->submit(opening(2), now, out);
  out.take();
  tell(proto::control_moved{});
  EXPECT_EQ(sent<proto::gateway_started>(out).size(), 1U);
  EXPECT_EQ(sent<proto::open_request>(out).size(), 1U);
  proto::attach_request question;
  for (const any_effect& e : out.effects())
    if (const auto* r = std::get_if<effect::request>(&e))
      question = *r->body.as<proto::attach_request>();
  EXPECT_EQ(question.from, (std::vector<std::uint32_t>{2}));
  EXPECT_TRUE(question.brief);
  proto::request_attached lost;
  lost.known = false;
  ASSERT_TRUE(core->on_answer(asked(), parcel::of(lost), now, out));
  core->check();
  EXPECT_EQ(heard<news::ended>()[0].why.code, ec::unavailable);
}

TEST_F(stream_gateway, opens_again_what_was_lost_before_its_first_token) {
  open(1);
  (void)core->take_news();
  tell(proto::control_moved{});
  out.take();
  tick(10s);
  proto::request_attached lost;
  lost.known = false;
  tell(proto::control_moved{});
  ASSERT_TRUE(core->on_answer(asked(), parcel::of(lost), now, out));
  core->check();
  EXPECT_EQ(sent<proto::open_request>(out).size(), 1U);
  EXPECT_TRUE(core->take_news().empty());
}

TEST_F(stream_gateway, ends_a_request_at_its_deadline_without_journal) {
  auto m = opening(1);
  m.spec.deadline_ms = 100;
  core->submit(m, now, out);
  now = now + 700ms;
  ASSERT_TRUE(core->on_due({2, 1}, now, out));
  core->check();
  EXPECT_EQ(heard<news::ended>()[0].why.code, ec::deadline_exceeded);
  EXPECT_EQ(sent<proto::cancel_request>(out).size(), 1U);
}

TEST_F(stream_gateway, says_an_end_again_until_it_is_released) {
  open(1);
  tell(released(1, 0, {5, 6}));
  core->end_choice({request_id{1}, 0, 2, 0}, now, out);
  EXPECT_EQ(sent<proto::end_choice>(out).size(), 1U);
  tick();
  EXPECT_EQ(sent<proto::end_choice>(out).size(), 1U);
  tell(released(1, 2, {}, true));
  tick();
  EXPECT_TRUE(sent<proto::end_choice>(out).empty());
}

TEST_F(stream_gateway, a_draining_gateway_takes_nothing_new) {
  open(1);
  core->drain();
  core->submit(opening(2), now, out);
  core->attach(3, request_id{9}, {}, now, out);
  EXPECT_EQ(heard<news::ended>()[0].request, request_id{2});
  tell(released(1, 0, {5}, true));
  EXPECT_TRUE(heard<news::tokens>()[0].last);
}

} // namespace
} // namespace di::engine
