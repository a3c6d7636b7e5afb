// SPDX-License-Identifier: Apache-2.0
// Goal: credits bound what is in flight, links come and go without a trace, and a bad start is
// refused. Method: post offices in one process over real sockets, as in bus_test.cpp.
#include "messaging/base/limits.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/bus/start_checks.hpp"
#include "messaging/bus/zmq_socket.hpp"
#include "messaging/proto/bus.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "tests/support/bus_pair.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace di::test {
namespace {

TEST(bus_credit, bounds_what_is_in_flight_and_comes_back) {
  run_dir dir;
  auto options = ipc_options(dir, "/control");
  options.bulk_credit_bytes = 1 << 20;
  options.bulk_credit_mails = 16;
  const auto left = start(options);
  options = ipc_options(dir, "/rank/1");
  options.bulk_credit_bytes = 1 << 20;
  options.bulk_credit_mails = 16;
  mailbox b;
  const shared_bytes data = shared_bytes::adopt(std::vector<char>(100'000, 'r'));
  const auto where = bus::ipc_endpoints(dir.path(), "rank-1", options.life);
  // Nobody is bound there yet: everything stays in flight.
  ASSERT_TRUE(left->add_route({"/rank/1", options.life, where->control, where->bulk, ""}).ok());
  std::uint64_t taken = 0;
  while (left->post(tell("/rank/1/b", "/control/a", rows{taken, data})).ok())
    ++taken;
  EXPECT_EQ(taken, (1u << 20) / 100'100);
  EXPECT_EQ(left->post(tell("/rank/1/b", "/control/a", rows{0, data})).error().code,
            ec::limit_exceeded);
  // Control mail has its own credit.
  EXPECT_TRUE(left->post(tell("/rank/1/b", "/control/a", ping{})).ok());
  const auto right = start(options);
  ASSERT_TRUE(right->bind("/rank/1/b", b.deliver()).ok());
  // Once the peer is there, far more than the credit passes.
  for (std::uint64_t n = taken; n < 200; ++n)
    ASSERT_TRUE(eventually([&] {
      return left->post(tell("/rank/1/b", "/control/a", rows{n, data})).ok();
    }));
  EXPECT_TRUE(eventually([&] { return b.size() >= 190; }));
  EXPECT_EQ(right->stats().sequence_gaps, 0u);
}

struct little_credit : ::testing::Test {
  void SetUp() override {
    auto options = ipc_options(dir, "/rank/1");
    options.bulk_credit_bytes = 1 << 20;
    right = start(options);
    options = ipc_options(dir, "/control");
    options.bulk_credit_bytes = 1 << 20;
    left = start(options);
    ASSERT_TRUE(right->bind("/rank/1/b", b.deliver()).ok());
    ASSERT_TRUE(left->add_route(right->self()).ok());
  }
  static shared_bytes bytes(std::size_t n) {
    return shared_bytes::adopt(std::vector<char>(n, 'r'));
  }
  run_dir dir;
  mailbox b;
  std::unique_ptr<bus::post_office> left, right;
};

TEST_F(little_credit, lets_answers_to_calls_pass) {
  for (const std::size_t size : {1'000u, 3u << 19})
    ASSERT_TRUE(left->post(tell("/rank/1/b", "/control/a",
                                proto::expert_rows{call_id{size}, rank_id{0}, {}, bytes(size)}))
                    .ok());
  for (const std::size_t size : {1'000u, 3u << 19}) {
    const auto got = b.next();
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->body.as<proto::expert_rows>()->rows.size(), size);
  }
}

TEST_F(little_credit, is_asked_for_by_what_found_none) {
  // Too little in flight for a grant of its own accord, and yet in the way of what exceeds all.
  ASSERT_TRUE(left->post(tell("/rank/1/b", "/control/a", rows{1, bytes(1'000)})).ok());
  ASSERT_TRUE(b.next().has_value());
  const auto heard = left->stats().received;
  ASSERT_FALSE(left->post(tell("/rank/1/b", "/control/a", rows{2, bytes(3u << 19)})).ok());
  ASSERT_TRUE(eventually([&] { return left->stats().received > heard; })); // the grant
  ASSERT_TRUE(eventually([&] {
    return left->post(tell("/rank/1/b", "/control/a", rows{2, bytes(3u << 19)})).ok();
  }));
  EXPECT_TRUE(b.next().has_value());
}

TEST(bus_links, bounce_requests_to_who_was_never_there_and_revive_when_it_comes) {
  run_dir dir;
  auto quick = ipc_options(dir, "/control");
  quick.connect_grace = std::chrono::milliseconds{200};
  const auto left = start(std::move(quick));
  mailbox a, b;
  ASSERT_TRUE(left->bind("/control/a", a.deliver()).ok());
  const auto options = ipc_options(dir, "/rank/1");
  ASSERT_TRUE(left->add_route({"/rank/1", options.life, options.control_endpoint,
                               options.bulk_endpoint, ""})
                  .ok());
  ASSERT_TRUE(left->post(request(*left, "/rank/1/b", "/control/a", ping{})).ok());
  EXPECT_EQ(failure_code(a.next(patience / 2)), ec::peer_lost);
  const auto right = start(options);
  ASSERT_TRUE(right->bind("/rank/1/b", b.deliver()).ok());
  ASSERT_TRUE(eventually(
      [&] { return left->post(request(*left, "/rank/1/b", "/control/a", ping{})).ok(); }));
  const auto asked = b.next();
  ASSERT_TRUE(asked.has_value());
  ASSERT_TRUE(right->post(reply(*asked, ping{3, ""})).ok()); // it knows us by our hello
  const auto got = a.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->kind, mail_kind::reply);
}

TEST(bus_links, do_not_lose_a_peer_that_was_reached_before_anyone_looked) {
  // The news of a connection may be there before its socket is waited for.
  run_dir dir;
  auto quick = ipc_options(dir, "/control");
  quick.connect_grace = std::chrono::milliseconds{500};
  quick.peers = 64;
  const auto left = start(std::move(quick));
  std::vector<std::unique_ptr<bus::post_office>> others;
  std::vector<mailbox> boxes(40);
  for (std::size_t n = 0; n < boxes.size(); ++n) {
    const address prefix = "/rank/" + std::to_string(n);
    others.push_back(start(ipc_options(dir, prefix)));
    ASSERT_TRUE(others[n]->bind(prefix + "/b", boxes[n].deliver()).ok());
    ASSERT_TRUE(left->add_route(others[n]->self()).ok());
  }
  for (std::size_t n = 0; n < boxes.size(); ++n)
    ASSERT_TRUE(left->post(tell(fmt::format("/rank/{}/b", n), "/control/a", ping{n, ""})).ok());
  for (mailbox& box : boxes)
    ASSERT_TRUE(box.next().has_value());
  mailbox nobody;
  EXPECT_FALSE(nobody.next(std::chrono::seconds{1}).has_value()); // twice the grace
  EXPECT_EQ(left->stats().peers_lost, 0u);
}

std::size_t open_descriptors() {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++n;
  return n;
}

TEST(bus_links, leave_no_descriptor_behind_after_fifty_peers) {
  run_dir dir;
  const auto left = start(ipc_options(dir, "/control"));
  mailbox a;
  ASSERT_TRUE(left->bind("/control/a", a.deliver()).ok());
  std::size_t before = 0;
  for (int n = 0; n < 50; ++n) {
    const auto right = start(ipc_options(dir, "/rank/1"));
    mailbox b;
    ASSERT_TRUE(right->bind("/rank/1/b", b.deliver()).ok());
    ASSERT_TRUE(left->add_route(right->self()).ok()); // replaces the life before
    ASSERT_TRUE(left->post(request(*left, "/rank/1/b", "/control/a", ping{})).ok());
    const auto at_b = b.next();
    ASSERT_TRUE(at_b.has_value());
    ASSERT_TRUE(right->post(reply(*at_b, ping{})).ok());
    ASSERT_TRUE(a.next().has_value());
    if (n == 4)
      before = open_descriptors();
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }))
      << before << " before, " << open_descriptors() << " after";
}

TEST(bus_start, refuses_a_directory_that_others_can_enter) {
  run_dir dir;
  std::filesystem::permissions(dir.path(), std::filesystem::perms{0755});
  const auto made = bus::make_post_office(ipc_options(dir, "/control"));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ec::refused);
}

TEST(bus_start, refuses_tcp_without_keys_and_paths_that_are_too_long) {
  run_dir dir;
  auto options = ipc_options(dir, "/control");
  options.control_endpoint = options.bulk_endpoint = "tcp://127.0.0.1:*";
  EXPECT_EQ(bus::make_post_office(options).error().code, ec::refused);
  options.control_endpoint = options.bulk_endpoint = "ipc:///tmp/" + std::string(120, 'x');
  EXPECT_EQ(bus::make_post_office(options).error().code, ec::limit_exceeded);
}

TEST(bus_start, names_the_descriptors_that_it_needs) {
  run_dir dir;
  auto options = ipc_options(dir, "/control");
  options.peers = limits::peers_max + 1;
  EXPECT_EQ(bus::make_post_office(options).error().code, ec::limit_exceeded);
  const auto raised = bus::raise_descriptor_limit(std::size_t{1} << 40);
  ASSERT_FALSE(raised.ok());
  EXPECT_EQ(raised.error().code, ec::limit_exceeded);
  EXPECT_NE(raised.error().what.find("1099511627776 descriptors"), std::string::npos);
}

} // namespace
} // namespace di::test
