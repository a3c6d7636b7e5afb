// SPDX-License-Identifier: Apache-2.0
// Goal: over tcp only processes with a listed key get through, and both ends check. Method: post
// offices on loopback with right, wrong and unlisted keys.
#include "messaging/proto/bus.hpp"
#include "tests/support/bus_pair.hpp"

#include <gtest/gtest.h>

namespace di::test {
namespace {

bus::post_office_options tcp_options(const address& prefix, const bus::curve_keys& keys,
                                     std::vector<std::string> allowed) {
  bus::post_office_options o;
  o.prefix = prefix;
  o.control_endpoint = o.bulk_endpoint = "tcp://127.0.0.1:*";
  o.keys = keys;
  o.allowed_keys = std::move(allowed);
  o.codecs = test_codecs();
  o.peers = 16;
  return o;
}

struct bus_curve : ::testing::Test {
  void SetUp() override {
    left_keys = bus::make_curve_keys().value();
    right_keys = bus::make_curve_keys().value();
  }
  void start_both(std::vector<std::string> right_allows) {
    left = start(tcp_options("/node/0", left_keys, {right_keys.public_key}));
    right = start(tcp_options("/node/1", right_keys, std::move(right_allows)));
    ASSERT_TRUE(left->bind("/node/0/a", a.deliver()).ok());
    ASSERT_TRUE(right->bind("/node/1/b", b.deliver()).ok());
  }
  ec failure() {
    const auto got = a.next();
    return got && got->kind == mail_kind::failure ? got->body.as<proto::request_failed>()->code
                                                  : ec::ok;
  }
  bus::curve_keys left_keys, right_keys;
  mailbox a, b;
  std::unique_ptr<bus::post_office> left, right;
};

TEST_F(bus_curve, lets_listed_keys_talk_and_carries_rows) {
  start_both({left_keys.public_key});
  ASSERT_TRUE(left->add_route(right->self()).ok());
  ASSERT_TRUE(left->post(request(*left, "/node/1/b", "/node/0/a", ping{1, ""})).ok());
  const auto asked = b.next();
  ASSERT_TRUE(asked.has_value());
  ASSERT_TRUE(right->post(reply(*asked, ping{2, ""})).ok());
  const auto got = a.next();
  ASSERT_TRUE(got.has_value());
  ASSERT_EQ(got->kind, mail_kind::reply);
  const shared_bytes data = shared_bytes::adopt(std::vector<char>(1 << 20, 'r'));
  ASSERT_TRUE(left->post(tell("/node/1/b", "/node/0/a", rows{1, data})).ok());
  EXPECT_EQ(b.next()->body.as<rows>()->data, data);
  EXPECT_NE(right->self().control_endpoint, "tcp://127.0.0.1:*"); // the port it was given
}

TEST_F(bus_curve, refuses_a_key_that_is_not_listed) {
  start_both({});
  ASSERT_TRUE(left->add_route(right->self()).ok());
  ASSERT_TRUE(left->post(request(*left, "/node/1/b", "/node/0/a", ping{1, ""})).ok());
  EXPECT_EQ(failure(), ec::refused);
  EXPECT_TRUE(eventually([&] { return right->stats().keys_refused > 0; })); // counted once told
  EXPECT_EQ(b.size(), 0u);
}

TEST_F(bus_curve, does_not_talk_to_a_server_with_another_key) {
  start_both({left_keys.public_key});
  bus::peer impostor = right->self();
  impostor.curve_key = bus::make_curve_keys()->public_key;
  ASSERT_TRUE(left->add_route(impostor).ok());
  ASSERT_TRUE(
      left->post(request(*left, "/node/1/b", "/node/0/a", ping{1, ""}, std::chrono::seconds{2}))
          .ok());
  EXPECT_NE(failure(), ec::ok);
  EXPECT_EQ(b.size(), 0u);
  EXPECT_EQ(right->stats().received, 0u);
}

TEST_F(bus_curve, tells_others_the_host_that_it_was_given) {
  auto options = tcp_options("/node/0", left_keys, {});
  options.control_endpoint = options.bulk_endpoint = "tcp://*:*";
  options.advertised_host = "127.0.0.1";
  left = start(options);
  EXPECT_TRUE(left->self().control_endpoint.starts_with("tcp://127.0.0.1:"));
  EXPECT_NE(left->self().bulk_endpoint, left->self().control_endpoint);
}

TEST_F(bus_curve, lets_a_key_in_that_a_route_brings) {
  start_both({});
  ASSERT_TRUE(right->add_route(left->self()).ok());
  ASSERT_TRUE(left->add_route(right->self()).ok());
  ASSERT_TRUE(left->post(tell("/node/1/b", "/node/0/a", ping{1, ""})).ok());
  EXPECT_TRUE(b.next().has_value());
}

} // namespace
} // namespace di::test
