// SPDX-License-Identifier: Apache-2.0
// Goal: what post_office.hpp promises holds over real sockets. Method: two or three post offices in
// one process, each standing for a process of its own.
#include "messaging/base/limits.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/bus/start_checks.hpp"
#include "messaging/bus/zmq_socket.hpp"
#include "messaging/proto/bus.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "tests/support/bus_pair.hpp"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>

namespace di::test {
namespace {

struct unknown {
  static constexpr wire_id wire{0x8fff};
  int n = 0;
  DI_FIELDS(unknown, m.n)
};

struct two_offices : ::testing::Test {
  void SetUp() override {
    left = start(ipc_options(dir, "/control"));
    right = start(ipc_options(dir, "/rank/1"));
    ASSERT_TRUE(left->bind("/control/a", a.deliver()).ok());
    ASSERT_TRUE(right->bind("/rank/1/b", b.deliver()).ok());
    ASSERT_TRUE(left->add_route(right->self()).ok());
  }
  run_dir dir;
  mailbox a, b;
  std::unique_ptr<bus::post_office> left, right;
};

TEST_F(two_offices, bring_a_tell_with_its_label) {
  left->set_view(epoch{5});
  ASSERT_TRUE(left->post(tell("/rank/1/b", "/control/a", ping{7, "hi"})).ok());
  const auto got = b.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->from, "/control/a");
  EXPECT_EQ(got->sender, left->self().life);
  EXPECT_EQ(got->view, epoch{5});
  ASSERT_NE(got->body.as<ping>(), nullptr);
  EXPECT_EQ(got->body.as<ping>()->text, "hi");
}

TEST_F(two_offices, answer_who_only_said_hello) {
  const envelope asked = request(*left, "/rank/1/b", "/control/a", ping{7, ""});
  ASSERT_TRUE(left->post(asked).ok());
  const auto at_b = b.next();
  ASSERT_TRUE(at_b.has_value());
  EXPECT_GT(at_b->deadline, real_env().now());
  ASSERT_TRUE(right->post(reply(*at_b, ping{8, ""})).ok());
  const auto got = a.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->kind, mail_kind::reply);
  EXPECT_EQ(got->request, asked.request);
  EXPECT_EQ(got->body.as<ping>()->n, 8u);
}

TEST_F(two_offices, keep_the_order_of_a_pair_and_batch_small_mail) {
  constexpr std::uint64_t mails = 20'000;
  const std::string large(limits::batch_item_bytes_max + 1, 'x');
  for (std::uint64_t i = 0; i < mails; ++i)
    ASSERT_TRUE(
        left->post(tell("/rank/1/b", "/control/a", ping{i, i % 1000 == 7 ? large : "s"})).ok());
  for (std::uint64_t i = 0; i < mails; ++i) {
    const auto got = b.next();
    ASSERT_TRUE(got.has_value()) << i;
    ASSERT_EQ(got->body.as<ping>()->n, i);
  }
  const auto s = left->stats();
  EXPECT_GT(s.batched_mails_sent, mails / 2);
  EXPECT_LT(s.frames_sent, mails / 2);
  EXPECT_EQ(right->stats().sequence_gaps, 0u);
  EXPECT_EQ(right->stats().malformed, 0u);
}

TEST_F(two_offices, carry_rows_without_copying_them_on_the_way_out) {
  std::vector<std::uint64_t> values(1 << 17);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i * i;
  const shared_bytes data = shared_bytes::adopt(values);
  const std::weak_ptr<const void> alive = data.owner();
  ASSERT_TRUE(left->post(tell("/rank/1/b", "/control/a", rows{3, data})).ok());
  auto got = b.next();
  ASSERT_TRUE(got.has_value());
  const auto* m = got->body.as<rows>();
  ASSERT_NE(m, nullptr);
  EXPECT_EQ(m->data, data);
  EXPECT_EQ(left->stats().attachment_bytes_copied, 0u);
  EXPECT_EQ(left->stats().attachment_bytes_sent, data.size());
  EXPECT_EQ(right->stats().attachment_bytes_realigned, 0u);
}

TEST_F(two_offices, release_rows_once_they_are_written) {
  std::weak_ptr<const void> alive;
  {
    const shared_bytes data = shared_bytes::adopt(std::vector<char>(1 << 20, 'r'));
    alive = data.owner();
    ASSERT_TRUE(left->post(tell("/rank/1/b", "/control/a", rows{3, data})).ok());
  }
  ASSERT_TRUE(b.next().has_value());
  EXPECT_TRUE(eventually([&] { return alive.expired(); }));
}

TEST(part, lends_the_bytes_where_they_lie) {
  const shared_bytes data = shared_bytes::adopt(std::vector<char>(100'000, 'r'));
  const std::weak_ptr<const void> alive = data.owner();
  {
    bus::part p = bus::part::lend(data);
    EXPECT_EQ(p.bytes().data(), data.data());
    EXPECT_GT(alive.use_count(), 1);
    std::atomic<std::uint64_t> realigned{0};
    const std::byte* received = p.bytes().data();
    const shared_bytes adopted = bus::adopt(std::move(p), realigned);
    EXPECT_EQ(adopted.data(), received);
    EXPECT_EQ(realigned.load(), 0u);
  }
  EXPECT_EQ(alive.use_count(), 1);
}

TEST_F(two_offices, deliver_small_and_empty_rows_aligned) {
  for (std::size_t n = 0; n < 200; ++n) {
    std::vector<std::uint64_t> values(n, n);
    ASSERT_TRUE(
        left->post(tell("/rank/1/b", "/control/a", rows{n, shared_bytes::adopt(values)})).ok());
  }
  for (std::size_t n = 0; n < 200; ++n) {
    const auto got = b.next();
    ASSERT_TRUE(got.has_value());
    const auto* m = got->body.as<rows>();
    ASSERT_EQ(m->n, n);
    EXPECT_EQ(m->data.size(), 8 * n);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(m->data.data()) % 8, 0u);
    for (const std::uint64_t v : m->data.as<std::uint64_t>())
      ASSERT_EQ(v, n);
  }
}

TEST_F(two_offices, fail_requests_to_paths_that_are_not_there) {
  ASSERT_TRUE(left->post(request(*left, "/rank/1/zzz", "/control/a", ping{})).ok());
  EXPECT_EQ(failure_code(a.next()), ec::not_found);
}

TEST_F(two_offices, end_requests_at_their_deadline) {
  ASSERT_TRUE(
      left->post(request(*left, "/rank/1/b", "/control/a", ping{}, std::chrono::milliseconds{30}))
          .ok());
  EXPECT_EQ(failure_code(a.next()), ec::deadline_exceeded);
  // The answer after that is dropped.
  const auto at_b = b.next();
  ASSERT_TRUE(at_b.has_value());
  ASSERT_TRUE(right->post(reply(*at_b, ping{})).ok());
  ASSERT_TRUE(left->post(tell("/control/a", "/control/a", ping{99, ""})).ok());
  EXPECT_EQ(a.next()->body.as<ping>()->n, 99u);
}

TEST_F(two_offices, bounce_what_a_remote_actor_left_unanswered) {
  ASSERT_TRUE(left->post(request(*left, "/rank/1/b", "/control/a", ping{})).ok());
  ASSERT_TRUE(b.next().has_value());
  right->unbind("/rank/1/b", error{ec::device_lost, "card 3"});
  const auto got = a.next();
  EXPECT_EQ(failure_code(got), ec::device_lost);
  EXPECT_EQ(got->body.as<proto::request_failed>()->what, "card 3");
}

TEST_F(two_offices, tell_watchers_across_processes) {
  ASSERT_TRUE(left->watch("/rank/1/b", "/control/a").ok());
  ASSERT_TRUE(left->watch("/rank/1/nobody", "/control/a").ok());
  auto got = a.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->body.as<proto::actor_down>()->path, "/rank/1/nobody");
  EXPECT_EQ(got->body.as<proto::actor_down>()->code, ec::not_found);
  right->unbind("/rank/1/b", error{ec::gave_up, "3 restarts"});
  got = a.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->body.as<proto::actor_down>()->path, "/rank/1/b");
  EXPECT_EQ(got->body.as<proto::actor_down>()->life, right->self().life);
  EXPECT_EQ(got->body.as<proto::actor_down>()->code, ec::gave_up);
  EXPECT_EQ(a.size(), 0u);
}

TEST_F(two_offices, bounce_and_tell_when_a_route_is_removed) {
  ASSERT_TRUE(left->watch("/rank/1/b", "/control/a").ok());
  ASSERT_TRUE(left->watch("/rank/1", "/control/a").ok());
  ASSERT_TRUE(left->post(request(*left, "/rank/1/b", "/control/a", ping{})).ok());
  ASSERT_TRUE(b.next().has_value());
  left->remove_route("/rank/1", error{ec::peer_lost, "expelled in view 2"});
  EXPECT_EQ(failure_code(a.next()), ec::peer_lost);
  EXPECT_NE(a.next()->body.as<proto::actor_down>(), nullptr);
  EXPECT_NE(a.next()->body.as<proto::actor_down>(), nullptr);
  EXPECT_EQ(left->post(tell("/rank/1/b", "/control/a", ping{})).error().code, ec::not_found);
  EXPECT_TRUE(left->routes().empty());
}

TEST_F(two_offices, talk_again_after_a_route_was_taken_back) {
  for (std::uint64_t n = 0; n < 5; ++n) {
    ASSERT_TRUE(left->post(request(*left, "/rank/1/b", "/control/a", ping{n, ""})).ok());
    const auto asked = b.next();
    ASSERT_TRUE(asked.has_value());
    ASSERT_EQ(asked->body.as<ping>()->n, n);
    ASSERT_TRUE(right->post(reply(*asked, ping{n, ""})).ok());
    ASSERT_TRUE(a.next().has_value());
    left->remove_route("/rank/1", error{ec::peer_lost, "suspected"});
    ASSERT_TRUE(left->add_route(right->self()).ok());
  }
}

TEST_F(two_offices, bounce_pending_requests_when_the_peer_ends) {
  ASSERT_TRUE(left->watch("/rank/1", "/control/a").ok());
  ASSERT_TRUE(left->post(request(*left, "/rank/1/b", "/control/a", ping{})).ok());
  ASSERT_TRUE(b.next().has_value());
  right.reset();
  EXPECT_EQ(failure_code(a.next()), ec::peer_lost);
  EXPECT_EQ(a.next()->body.as<proto::actor_down>()->code, ec::peer_lost);
  EXPECT_EQ(left->post(request(*left, "/rank/1/b", "/control/a", ping{})).error().code,
            ec::peer_lost);
  EXPECT_EQ(left->stats().peers_lost, 1u);
}

TEST_F(two_offices, see_the_end_of_a_process_that_is_only_watched) {
  ASSERT_TRUE(left->watch("/rank/1", "/control/a").ok());
  ASSERT_TRUE(eventually([&] { return right->stats().received > 0; })); // the hello
  right.reset();
  const auto got = a.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->body.as<proto::actor_down>()->path, "/rank/1");
  EXPECT_EQ(got->body.as<proto::actor_down>()->code, ec::peer_lost);
}

TEST_F(two_offices, send_their_last_words) {
  mailbox c;
  ASSERT_TRUE(left->bind("/control/c", c.deliver()).ok());
  ASSERT_TRUE(right->add_route(left->self()).ok());
  ASSERT_TRUE(right->post(tell("/control/c", "/rank/1/b", ping{1, "device lost"})).ok());
  right.reset(); // its connection is not even there yet
  const auto got = c.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->body.as<ping>()->text, "device lost");
}

TEST(bus_hellos, keep_coming_in_when_many_peers_came_and_went) {
  run_dir dir;
  auto options = ipc_options(dir, "/control");
  options.peers = 4;
  const auto left = start(options);
  mailbox a;
  ASSERT_TRUE(left->bind("/control/a", a.deliver()).ok());
  for (std::uint64_t n = 0; n < 30; ++n) {
    const auto right = start(ipc_options(dir, "/rank/" + std::to_string(n)));
    mailbox b;
    const address me = "/rank/" + std::to_string(n) + "/b";
    ASSERT_TRUE(right->bind(me, b.deliver()).ok());
    ASSERT_TRUE(right->add_route(left->self()).ok());
    if (n % 8 != 7) { // most are never written to
      ASSERT_TRUE(right->post(tell("/control/a", me, ping{n, ""})).ok());
      ASSERT_TRUE(a.next().has_value());
      continue;
    }
    ASSERT_TRUE(right->post(request(*right, "/control/a", me, ping{n, ""})).ok());
    const auto asked = a.next();
    ASSERT_TRUE(asked.has_value());
    ASSERT_TRUE(left->post(reply(*asked, ping{n, ""})).ok());
    const auto got = b.next();
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->kind, mail_kind::reply);
  }
}

TEST_F(two_offices, refuse_mail_from_a_life_that_was_replaced) {
  ASSERT_TRUE(right->add_route(left->self()).ok());
  ASSERT_TRUE(left->post(tell("/rank/1/b", "/control/a", ping{1, ""})).ok());
  ASSERT_TRUE(b.next().has_value());
  bus::peer next = left->self();
  next.life = incarnation{next.life.v + 2};
  ASSERT_TRUE(right->add_route(next).ok());
  ASSERT_TRUE(left->post(tell("/rank/1/b", "/control/a", ping{2, ""})).ok());
  EXPECT_TRUE(eventually([&] { return right->stats().stale_frames > 0; }));
  EXPECT_EQ(b.size(), 0u);
}

TEST_F(two_offices, answer_mail_for_another_life_by_bouncing) {
  // The directory still names a life that is no more, at the same endpoints.
  bus::peer stale = right->self();
  stale.prefix = "/rank/7";
  stale.life = incarnation{stale.life.v + 2};
  ASSERT_TRUE(left->add_route(stale).ok());
  ASSERT_TRUE(left->post(request(*left, "/rank/7/b", "/control/a", ping{})).ok());
  EXPECT_EQ(failure_code(a.next()), ec::stale_incarnation);
  EXPECT_EQ(b.size(), 0u);
  EXPECT_GT(right->stats().stale_frames, 0u);
}

double processor_ms() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

TEST_F(two_offices, use_no_processor_time_when_idle) {
  ASSERT_TRUE(left->post(tell("/rank/1/b", "/control/a", ping{})).ok());
  ASSERT_TRUE(b.next().has_value());
  const double before = processor_ms();
  EXPECT_FALSE(a.next(std::chrono::milliseconds{300}).has_value());
  EXPECT_LT(processor_ms() - before, 30.0); // polling takes as much as it waits
}

TEST_F(two_offices, refuse_what_they_cannot_encode) {
  EXPECT_EQ(left->post(tell("/rank/1/b", "/control/a", unknown{})).error().code,
            ec::unknown_message);
}

} // namespace
} // namespace di::test
