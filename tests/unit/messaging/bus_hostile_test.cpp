// SPDX-License-Identifier: Apache-2.0
// Goal: whatever a socket brings is counted and refused, and mail of others goes on. Method: a raw
// dealer that sends frames which no bus would make.
#include "messaging/bus/zmq_socket.hpp"
#include "messaging/wire/frame.hpp"
#include "tests/support/bus_pair.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace di::test {
namespace {

struct bus_hostile : ::testing::Test {
  void SetUp() override {
    office = start(ipc_options(dir, "/rank/1"));
    ASSERT_TRUE(office->bind("/rank/1/b", b.deliver()).ok());
    connect(fmt::format("/x#{:016x}", life.v), office->self().control_endpoint);
  }
  void connect(const std::string& routing_id, const std::string& endpoint) {
    dealer = bus::socket{context.raw(), ZMQ_DEALER};
    dealer.set(ZMQ_LINGER, 0);
    dealer.set(ZMQ_ROUTING_ID, std::string_view{routing_id});
    ASSERT_TRUE(dealer.connect(endpoint).ok());
  }
  /// A frame as a bus of `life` would send it.
  std::vector<std::byte> frame(std::uint64_t sequence, std::uint64_t n = 0, wire_id id = ping::wire,
                               mail_kind kind = mail_kind::tell,
                               std::span<const shared_bytes> attachments = {}) {
    wire::frame_label l;
    l.kind = kind;
    l.id = id;
    l.sender = life;
    l.receiver = office->self().life;
    l.sequence = sequence;
    l.to = "/rank/1/b";
    l.from = "/x/y";
    return wire::make_frame(l, wire::encode(ping{n, ""}).body, attachments).value();
  }
  void send(std::vector<std::vector<std::byte>> parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      bus::part p{std::span<const std::byte>{parts[i]}};
      zmq_msg_send(p.raw(), dealer.raw(), i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
    }
  }
  void expect_ping(std::uint64_t n) {
    const auto got = b.next();
    ASSERT_TRUE(got.has_value());
    ASSERT_NE(got->body.as<ping>(), nullptr);
    EXPECT_EQ(got->body.as<ping>()->n, n);
  }
  run_dir dir;
  mailbox b;
  std::unique_ptr<bus::post_office> office;
  bus::context context;
  bus::socket dealer;
  incarnation life{0xabc};
};

TEST_F(bus_hostile, refuses_what_is_no_frame_and_goes_on) {
  send({{}});
  send({std::vector<std::byte>(71, std::byte{0x64})});
  send({std::vector<std::byte>(1000, std::byte{0xff})});
  std::vector<std::byte> flipped = frame(1);
  flipped[80] ^= std::byte{1};
  send({flipped});
  send({frame(1, 5)});
  expect_ping(5);
  EXPECT_EQ(office->stats().malformed, 4u);
}

TEST_F(bus_hostile, drops_repeated_frames_and_counts_gaps) {
  send({frame(1, 1)});
  send({frame(1, 2)});
  send({frame(5, 3)});
  send({frame(4, 4)});
  send({frame(6, 5)});
  expect_ping(1);
  expect_ping(3);
  expect_ping(5);
  EXPECT_EQ(office->stats().sequence_gaps, 3u);
}

TEST_F(bus_hostile, refuses_frames_in_the_name_of_another_life) {
  const incarnation own = life;
  life = incarnation{0xdef};
  const auto forged = frame(1, 1);
  life = own;
  send({forged});
  send({frame(1, 2)});
  expect_ping(2);
  EXPECT_EQ(office->stats().malformed, 1u);
}

TEST_F(bus_hostile, refuses_attachments_that_the_header_does_not_name) {
  const std::vector<shared_bytes> named{shared_bytes::adopt(std::string("12345678"))};
  send({frame(1), {std::byte{1}}});                                        // none named, one there
  send({frame(1, 0, ping::wire, mail_kind::tell, named)});                 // one named, none there
  send({frame(1, 0, ping::wire, mail_kind::tell, named), {std::byte{1}}}); // other size
  send({frame(1, 0, ping::wire, mail_kind::tell, named), std::vector<std::byte>(8)}); // no field
  send(std::vector<std::vector<std::byte>>(200, frame(1))); // far too many parts
  send({frame(2, 7)});
  expect_ping(7);
  EXPECT_EQ(office->stats().malformed, 5u);
}

TEST_F(bus_hostile, refuses_unknown_messages_and_requests_without_deadline) {
  send({frame(1, 0, wire_id{0x7abc})});
  send({frame(2, 0, ping::wire, mail_kind::request)});
  send({frame(3, 0, wire_id{0x0001})}); // the bus's own, but nothing it expects
  send({frame(4, 9)});
  expect_ping(9);
  EXPECT_GE(office->stats().malformed, 3u);
}

TEST_F(bus_hostile, checks_the_items_of_a_batch_one_by_one) {
  std::vector<std::byte> bad = frame(0, 2);
  bad.back() ^= std::byte{1};
  const auto a = frame(0, 1), c = frame(0, 3);
  const std::vector<std::span<const std::byte>> items{a, bad, c};
  std::vector<std::byte> batch(wire::batch_bytes(3, a.size() + bad.size() + c.size()));
  wire::write_batch(batch, life, office->self().life, 1, items);
  send({batch});
  expect_ping(1);
  expect_ping(3);
  EXPECT_EQ(office->stats().malformed, 1u);
}

TEST_F(bus_hostile, accepts_no_routing_id_without_incarnation) {
  connect("somebody", office->self().control_endpoint);
  send({frame(1, 1)});
  EXPECT_TRUE(eventually([&] { return office->stats().malformed == 1; }));
  EXPECT_EQ(b.size(), 0u);
}

} // namespace
} // namespace di::test
