// SPDX-License-Identifier: Apache-2.0
// Goal: the death, the rebirth and the sleep of a peer cost its callers no wait and no wrong
// answer. Method: a real child process (tests/support/bus_peer.cpp), killed and stopped by signals.
#include "messaging/proto/bus.hpp"
#include "tests/support/bus_pair.hpp"
#include "tests/support/child.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

namespace di::test {
namespace {

struct bus_process : ::testing::Test {
  void SetUp() override {
    office = start(ipc_options(dir, "/control"));
    ASSERT_TRUE(office->bind("/control/a", a.deliver()).ok());
    spawn(incarnation{0x1111});
  }

  /// Starts a life of the peer and routes to it.
  void spawn(incarnation life) {
    const auto where = bus::ipc_endpoints(dir.path(), "rank-1", life);
    const bus::peer self = office->self();
    peer = {"/rank/1", life, where->control, where->bulk, ""};
    process.reset();
    process = std::make_unique<child>(std::vector<std::string>{
        DI_BUS_PEER, peer.control_endpoint, peer.bulk_endpoint, fmt::format("{:x}", life.v),
        self.prefix, fmt::format("{:x}", self.life.v), self.control_endpoint, self.bulk_endpoint});
    ASSERT_TRUE(process->ready());
    ASSERT_TRUE(office->add_route(peer).ok());
  }

  void ask(std::uint64_t n, std::string text, duration timeout = patience) {
    ASSERT_TRUE(
        office->post(request(*office, "/rank/1/echo", "/control/a", ping{n, text}, timeout)).ok());
  }
  void expect_answer(std::uint64_t n) {
    const auto got = a.next();
    ASSERT_TRUE(got.has_value());
    ASSERT_EQ(got->kind, mail_kind::reply);
    EXPECT_EQ(got->body.as<ping>()->n, n);
  }

  run_dir dir;
  mailbox a;
  std::unique_ptr<bus::post_office> office;
  bus::peer peer;
  std::unique_ptr<child> process;
};

TEST_F(bus_process, answers_across_the_process_boundary_in_order) {
  for (std::uint64_t n = 0; n < 1000; ++n)
    ask(n, "go");
  for (std::uint64_t n = 0; n < 1000; ++n)
    expect_answer(n + 1);
}

TEST_F(bus_process, bounces_pending_requests_quickly_when_the_peer_is_killed) {
  ask(1, "go");
  expect_answer(2);
  ASSERT_TRUE(office->watch("/rank/1/echo", "/control/a").ok());
  for (int n = 0; n < 10; ++n)
    ask(5, "keep");
  const instant killed = real_env().now();
  process->end(SIGKILL);
  for (int n = 0; n < 10; ++n)
    EXPECT_EQ(failure_code(a.next()), ec::peer_lost);
  const auto down = a.next();
  ASSERT_TRUE(down.has_value());
  ASSERT_NE(down->body.as<proto::actor_down>(), nullptr);
  EXPECT_EQ(down->body.as<proto::actor_down>()->path, "/rank/1/echo");
  EXPECT_EQ(down->body.as<proto::actor_down>()->life, peer.life);
  // Far below the requests' own deadline; the grace is 60 ms, a loaded machine adds to it.
  EXPECT_LT(real_env().now() - killed, patience / 4);
}

TEST_F(bus_process, gives_no_mail_of_an_earlier_life_to_the_next) {
  ask(1, "go");
  expect_answer(2);
  process->end(SIGKILL);
  // Whatever is posted now is for the dead life; some of it waits in queues.
  int accepted = 0;
  for (int n = 0; n < 50; ++n)
    accepted += office->post(request(*office, "/rank/1/echo", "/control/a", ping{100, "go"})).ok();
  spawn(incarnation{0x2222});
  ask(7, "go");
  int bounced = 0;
  for (int n = 0; n < accepted + 1; ++n) {
    const auto got = a.next();
    ASSERT_TRUE(got.has_value());
    if (got->kind == mail_kind::failure) {
      ++bounced;
    } else {
      EXPECT_EQ(got->body.as<ping>()->n, 8u); // never 101: nobody carried out the old ones
    }
  }
  EXPECT_EQ(bounced, accepted);
}

TEST_F(bus_process, ends_requests_to_a_stopped_peer_at_their_deadline) {
  ask(1, "go");
  expect_answer(2);
  process->stop();
  ask(2, "go", std::chrono::milliseconds{50});
  EXPECT_EQ(failure_code(a.next()), ec::deadline_exceeded);
  process->signal(SIGCONT);
  ask(3, "go");
  expect_answer(4); // the answer to the late one was dropped
  EXPECT_EQ(office->stats().peers_lost, 0u);
}

TEST_F(bus_process, tells_watchers_when_a_remote_actor_ends) {
  ASSERT_TRUE(office->watch("/rank/1/echo", "/control/a").ok());
  ASSERT_TRUE(office->post(tell("/rank/1/echo", "/control/a", ping{0, "end"})).ok());
  const auto down = a.next();
  ASSERT_TRUE(down.has_value());
  EXPECT_EQ(down->body.as<proto::actor_down>()->code, ec::gave_up);
  EXPECT_EQ(down->body.as<proto::actor_down>()->what, "was told to end");
}

} // namespace
} // namespace di::test
