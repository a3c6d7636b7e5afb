// SPDX-License-Identifier: Apache-2.0
// Goal: inside one process, mail arrives as a pointer and each request gets exactly one answer.
// Method: a post office without sockets, mailboxes instead of actors.
#include "messaging/bus/requests.hpp"
#include "messaging/proto/bus.hpp"
#include "tests/support/bus_messages.hpp"
#include "tests/support/mailbox.hpp"

#include <gtest/gtest.h>

namespace di::test {
namespace {

struct post_office : ::testing::Test {
  void SetUp() override {
    bus::post_office_options options;
    options.prefix = "/rank/0";
    options.codecs = test_codecs();
    auto made = bus::make_post_office(options);
    ASSERT_TRUE(made.ok()) << made.error().render();
    office = std::move(*made);
    ASSERT_TRUE(office->bind("/rank/0/a", a.deliver()).ok());
    ASSERT_TRUE(office->bind("/rank/0/b", b.deliver()).ok());
  }
  void expect_failure(const std::optional<envelope>& mail, std::uint64_t request, ec code) {
    ASSERT_TRUE(mail.has_value());
    EXPECT_EQ(mail->kind, mail_kind::failure);
    EXPECT_EQ(mail->request, request);
    ASSERT_NE(mail->body.as<proto::request_failed>(), nullptr);
    EXPECT_EQ(mail->body.as<proto::request_failed>()->code, code)
        << mail->body.as<proto::request_failed>()->what;
  }
  mailbox a, b;
  std::unique_ptr<bus::post_office> office;
};

TEST_F(post_office, hands_local_mail_over_as_the_same_object) {
  const envelope mail = tell("/rank/0/b", "/rank/0/a", ping{1, "x"});
  const void* body = mail.body.body();
  ASSERT_TRUE(office->post(mail).ok());
  const auto got = b.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->body.body(), body);
  EXPECT_EQ(got->from, "/rank/0/a");
}

TEST_F(post_office, brings_a_reply_to_its_requester_once) {
  const envelope asked = request(*office, "/rank/0/b", "/rank/0/a", ping{1, ""});
  ASSERT_TRUE(office->post(asked).ok());
  const auto at_b = b.next();
  ASSERT_TRUE(at_b.has_value());
  ASSERT_TRUE(office->post(reply(*at_b, ping{2, ""})).ok());
  ASSERT_TRUE(office->post(reply(*at_b, ping{3, ""})).ok());
  const auto got = a.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->kind, mail_kind::reply);
  EXPECT_EQ(got->request, asked.request);
  EXPECT_EQ(got->body.as<ping>()->n, 2u);
  EXPECT_EQ(a.size(), 0u);
  EXPECT_EQ(office->stats().dropped, 1u);
}

TEST_F(post_office, ends_a_request_at_its_deadline_and_drops_the_late_reply) {
  const envelope asked =
      request(*office, "/rank/0/b", "/rank/0/a", ping{}, std::chrono::milliseconds{5});
  ASSERT_TRUE(office->post(asked).ok());
  expect_failure(a.next(), asked.request, ec::deadline_exceeded);
  ASSERT_TRUE(office->post(reply(*b.next(), ping{})).ok());
  EXPECT_EQ(a.size(), 0u);
}

TEST_F(post_office, keeps_an_earlier_deadline_that_was_posted_later) {
  const envelope late = request(*office, "/rank/0/b", "/rank/0/a", ping{}, patience);
  const envelope soon =
      request(*office, "/rank/0/b", "/rank/0/a", ping{}, std::chrono::milliseconds{5});
  ASSERT_TRUE(office->post(late).ok());
  ASSERT_TRUE(office->post(soon).ok());
  expect_failure(a.next(), soon.request, ec::deadline_exceeded);
}

TEST_F(post_office, refuses_mail_to_unknown_paths_and_tells_nobody) {
  EXPECT_EQ(office->post(tell("/rank/0/c", "/rank/0/a", ping{})).error().code, ec::not_found);
  EXPECT_EQ(office->post(request(*office, "/rank/9/c", "/rank/0/a", ping{})).error().code,
            ec::not_found);
  EXPECT_EQ(a.size(), 0u);
}

TEST_F(post_office, refuses_requests_without_number_or_deadline) {
  envelope mail = request(*office, "/rank/0/b", "/rank/0/a", ping{});
  mail.deadline = {};
  EXPECT_EQ(office->post(mail).error().code, ec::bad_argument);
  mail = request(*office, "/rank/0/b", "/rank/0/a", ping{});
  mail.request = 0;
  EXPECT_EQ(office->post(mail).error().code, ec::bad_argument);
}

TEST_F(post_office, bounces_what_an_ended_actor_left_unanswered) {
  const envelope asked = request(*office, "/rank/0/b", "/rank/0/a", ping{});
  ASSERT_TRUE(office->post(asked).ok());
  office->unbind("/rank/0/b", error{ec::internal, "handler threw"});
  expect_failure(a.next(), asked.request, ec::internal);
}

TEST_F(post_office, bounces_with_unavailable_after_a_planned_end) {
  const envelope asked = request(*office, "/rank/0/b", "/rank/0/a", ping{});
  ASSERT_TRUE(office->post(asked).ok());
  office->unbind("/rank/0/b", error{ec::ok, ""});
  expect_failure(a.next(), asked.request, ec::unavailable);
}

TEST_F(post_office, lets_an_actor_refuse_a_request) {
  const envelope asked = request(*office, "/rank/0/b", "/rank/0/a", ping{});
  ASSERT_TRUE(office->post(asked).ok());
  envelope refusal = reply(*b.next(), proto::request_failed{ec::kv_exhausted, "no page"});
  refusal.kind = mail_kind::failure;
  ASSERT_TRUE(office->post(refusal).ok());
  expect_failure(a.next(), asked.request, ec::kv_exhausted);
}

TEST_F(post_office, tells_a_watcher_once_when_a_path_ends) {
  ASSERT_TRUE(office->watch("/rank/0/b", "/rank/0/a").ok());
  ASSERT_TRUE(office->watch("/rank/0/b", "/rank/0/a").ok());
  office->unbind("/rank/0/b", error{ec::gave_up, "3 restarts"});
  const auto got = a.next();
  ASSERT_TRUE(got.has_value());
  const auto* down = got->body.as<proto::actor_down>();
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->path, "/rank/0/b");
  EXPECT_EQ(down->code, ec::gave_up);
  EXPECT_EQ(a.size(), 0u);
}

TEST_F(post_office, tells_a_watcher_of_an_unknown_path_at_once) {
  ASSERT_TRUE(office->watch("/rank/0/zzz", "/rank/0/a").ok());
  const auto got = a.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->body.as<proto::actor_down>()->code, ec::not_found);
}

TEST_F(post_office, tells_nothing_after_unwatch) {
  ASSERT_TRUE(office->watch("/rank/0/b", "/rank/0/a").ok());
  office->unwatch("/rank/0/b", "/rank/0/a");
  office->unbind("/rank/0/b", error{ec::gave_up, ""});
  EXPECT_EQ(a.size(), 0u);
}

TEST_F(post_office, refuses_a_path_that_is_taken_and_words_that_are_no_path) {
  EXPECT_EQ(office->bind("/rank/0/a", a.deliver()).error().code, ec::duplicate);
  EXPECT_EQ(office->bind("rank", a.deliver()).error().code, ec::bad_argument);
  EXPECT_EQ(office->bind("/rank/", a.deliver()).error().code, ec::bad_argument);
  EXPECT_EQ(office->bind("/" + std::string(255, 'x'), a.deliver()).error().code, ec::bad_argument);
}

TEST_F(post_office, has_no_routes_without_sockets) {
  EXPECT_EQ(office->add_route({"/rank/1", incarnation{5}, "ipc:///x", "ipc:///y", ""}).error().code,
            ec::bad_argument);
}

TEST(pending_requests, gives_each_entry_out_once_and_in_order_of_deadline) {
  bus::pending_requests book;
  bool earliest = false;
  ASSERT_TRUE(book.add({1, "/a", "/b", "", {}, instant{20}}, earliest).ok());
  EXPECT_TRUE(earliest);
  ASSERT_TRUE(book.add({2, "/a", "/c", "/r", incarnation{9}, instant{10}}, earliest).ok());
  EXPECT_TRUE(earliest);
  ASSERT_TRUE(book.add({3, "/a", "/b", "", {}, instant{30}}, earliest).ok());
  EXPECT_FALSE(earliest);
  EXPECT_EQ(book.add({3, "/a", "/b", "", {}, instant{30}}, earliest).error().code, ec::duplicate);
  EXPECT_EQ(book.next_due(), instant{10});
  EXPECT_FALSE(book.take(2, incarnation{8}, "/a").has_value()); // another life answers
  EXPECT_FALSE(book.take(2, incarnation{9}, "/b").has_value()); // to somebody who did not ask
  EXPECT_EQ(book.take_due(instant{20}).size(), 2u);
  EXPECT_EQ(book.take_local("/b").size(), 1u);
  EXPECT_EQ(book.size(), 0u);
  EXPECT_FALSE(book.next_due().has_value());
}

} // namespace
} // namespace di::test
