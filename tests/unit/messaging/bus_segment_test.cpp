// SPDX-License-Identifier: Apache-2.0
// Goal: rows between two offices of one host arrive as the same bytes with and without shared
// memory, and whatever goes wrong in a segment is refused, counted or falls back to frames.
#include "messaging/bus/send_segment.hpp"
#include "messaging/bus/zmq_socket.hpp"
#include "messaging/wire/frame.hpp"
#include "tests/support/bus_pair.hpp"
#include "tests/support/segments.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace di::test {
namespace {

constexpr std::uint64_t segment_size = 1u << 20;
constexpr incarnation life_a{0xa1}, life_b{0xb1};

shared_bytes filled(std::size_t size, std::uint64_t n) {
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i)
    out[i] = static_cast<std::byte>(i * 7 + n);
  return shared_bytes::adopt(std::move(out));
}

struct bus_segment : ::testing::Test {
  void SetUp() override {
    one =
        start(with_segments(ipc_options(dir, "/rank/0", life_a), segment_one, segment_two, life_b));
    two =
        start(with_segments(ipc_options(dir, "/rank/1", life_b), segment_two, segment_one, life_a));
    ASSERT_TRUE(one->bind("/rank/0/a", a.deliver()).ok());
    ASSERT_TRUE(two->bind("/rank/1/b", b.deliver()).ok());
    ASSERT_TRUE(one->add_route(two->self()).ok());
    ASSERT_TRUE(two->add_route(one->self()).ok());
    // A hello of each side tells the other that its segment is read.
    ASSERT_TRUE(two->post(tell("/rank/0/a", "/rank/1/b", ping{1, ""})).ok());
    ASSERT_TRUE(a.next().has_value());
  }
  /// Sends rows from one to two; gives what arrived.
  shared_bytes carry(std::size_t size, std::uint64_t n) {
    EXPECT_TRUE(one->post(tell("/rank/1/b", "/rank/0/a", rows{n, filled(size, n)})).ok());
    const auto got = b.next();
    if (!got || got->body.as<rows>() == nullptr)
      return {};
    EXPECT_EQ(got->body.as<rows>()->n, n);
    EXPECT_EQ(got->body.as<rows>()->data, filled(size, n));
    return got->body.as<rows>()->data;
  }

  test_segment segment_one{segment_size}, segment_two{segment_size};
  run_dir dir;
  mailbox a, b;
  std::unique_ptr<bus::post_office> one, two;
};

TEST_F(bus_segment, carries_rows_of_every_size_as_the_same_bytes) {
  std::uint64_t n = 0;
  for (const std::size_t size : {0, 1, 63, 511, 512, 513, 4096, 65'537, 700'000, 2'000'000})
    carry(size, ++n);
  const auto s = one->stats();
  EXPECT_EQ(s.segment_mails_sent, 5u); // 512 to 700,000; the last one does not fit
  EXPECT_EQ(two->stats().segment_mails_received, 5u);
  EXPECT_EQ(s.segment_full, 1u);
  EXPECT_EQ(two->stats().segment_refused + s.segment_refused, 0u);
}

TEST_F(bus_segment, gives_slots_back) {
  for (std::uint64_t n = 0; n < 200; ++n)
    carry(300'000, n); // more than the segment holds at once
  EXPECT_TRUE(eventually([&] { return one->stats().segment_slots == 0; }));
  EXPECT_EQ(one->stats().segment_mails_sent + one->stats().segment_full, 200u);
  EXPECT_GT(one->stats().segment_mails_sent, 50u);
  EXPECT_EQ(two->stats().segment_overwritten, 0u);
}

TEST_F(bus_segment, falls_back_to_frames_when_the_segment_is_full) {
  std::vector<shared_bytes> held;
  for (std::uint64_t n = 0; n < 10; ++n)
    held.push_back(carry(300'000, n));
  EXPECT_EQ(one->stats().segment_mails_sent, 3u);
  EXPECT_EQ(one->stats().segment_full, 7u);
  for (std::uint64_t n = 0; n < 10; ++n)
    EXPECT_EQ(held[n], filled(300'000, n)); // nobody wrote over what is held
  held.clear();
  EXPECT_TRUE(eventually([&] { return one->stats().segment_slots == 0; }));
  carry(300'000, 11);
  EXPECT_EQ(one->stats().segment_mails_sent, 4u);
}

TEST_F(bus_segment, keeps_the_order_of_large_small_and_shared_mail) {
  std::uint64_t sent = 0;
  for (int n = 0; n < 500; ++n) {
    const std::size_t size = n % 3 == 0 ? 100 : n % 3 == 1 ? 5'000 : 60'000;
    ASSERT_TRUE(one->post(tell("/rank/1/b", "/rank/0/a", rows{sent, filled(size, sent)})).ok());
    ++sent;
  }
  for (std::uint64_t n = 0; n < sent; ++n) {
    const auto got = b.next();
    ASSERT_TRUE(got.has_value());
    ASSERT_EQ(got->body.as<rows>()->n, n);
    const std::size_t size = n % 3 == 0 ? 100 : n % 3 == 1 ? 5'000 : 60'000;
    ASSERT_EQ(got->body.as<rows>()->data, filled(size, n));
  }
  // Both ways were used.
  EXPECT_GT(one->stats().segment_mails_sent, 20u);
  EXPECT_GT(one->stats().segment_full, 20u);
}

TEST_F(bus_segment, uses_slots_of_a_reader_again_only_after_its_certified_death) {
  std::vector<shared_bytes> held;
  for (std::uint64_t n = 0; n < 3; ++n)
    held.push_back(carry(300'000, n));
  EXPECT_EQ(one->stats().segment_slots, 3u);
  two.reset(); // ends: a disconnect
  one->remove_route("/rank/1", error{ec::peer_lost, "suspected"});
  EXPECT_EQ(one->stats().segment_slots, 3u);
  EXPECT_EQ(held[1], filled(300'000, 1));
  held.clear();
  one->certify_death(life_b);
  EXPECT_EQ(one->stats().segment_slots, 0u);
}

TEST_F(bus_segment, frees_slots_of_mail_that_cannot_leave) {
  two.reset();
  for (std::uint64_t n = 0; n < 3; ++n)
    static_cast<void>(one->post(tell("/rank/1/b", "/rank/0/a", rows{n, filled(2'000, n)})));
  one->remove_route("/rank/1", error{ec::peer_lost, "gone"});
  one->certify_death(life_b);
  EXPECT_TRUE(eventually([&] { return one->stats().segment_slots == 0; }));
}

TEST_F(bus_segment, sends_frames_to_who_does_not_read_it) {
  const auto third = start(ipc_options(dir, "/rank/2"));
  mailbox c;
  ASSERT_TRUE(third->bind("/rank/2/c", c.deliver()).ok());
  ASSERT_TRUE(third->add_route(one->self()).ok());
  ASSERT_TRUE(one->add_route(third->self()).ok());
  ASSERT_TRUE(third->post(tell("/rank/0/a", "/rank/2/c", ping{1, ""})).ok());
  ASSERT_TRUE(a.next().has_value());
  ASSERT_TRUE(one->post(tell("/rank/2/c", "/rank/0/a", rows{1, filled(5'000, 1)})).ok());
  const auto got = c.next();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->body.as<rows>()->data, filled(5'000, 1));
  EXPECT_EQ(one->stats().segment_mails_sent, 0u);
}

TEST_F(bus_segment, leaves_no_descriptor_and_no_mapping_behind) {
  carry(300'000, 1);
  two.reset();
  one.reset();
  EXPECT_EQ(mapped_segments(), 0u);
  const std::size_t before = open_descriptors();
  for (int round = 0; round < 3; ++round) {
    segment_one = test_segment{segment_size}; // the old ones have had their writer
    segment_two = test_segment{segment_size};
    SetUp();
    carry(300'000, 1);
    two.reset();
    one.reset();
    EXPECT_EQ(mapped_segments(), 0u);
    EXPECT_EQ(open_descriptors(), before);
  }
}

// --- hostile descriptors ----------------------------------------------------------------------

struct bus_segment_hostile : ::testing::Test {
  void SetUp() override {
    auto o = ipc_options(dir, "/rank/1");
    o.segments.neighbours = {{life, segment.reader()}};
    office = start(std::move(o));
    ASSERT_TRUE(office->bind("/rank/1/b", b.deliver()).ok());
    writer = bus::send_segment::open(segment.writer()).value();
    dealer = bus::socket{context.raw(), ZMQ_DEALER};
    dealer.set(ZMQ_LINGER, 0);
    dealer.set(ZMQ_ROUTING_ID, std::string_view{fmt::format("/x#{:016x}", life.v)});
    ASSERT_TRUE(dealer.connect(office->self().bulk_endpoint).ok());
  }
  /// Rows as a bus of `life` would send them, at `slot`.
  void send(const wire::segment_slot& slot, std::size_t size, bool batched = false) {
    wire::frame_label l;
    l.id = rows::wire;
    l.sender = life;
    l.receiver = office->self().life;
    l.sequence = ++sequence;
    l.to = "/rank/1/b";
    l.from = "/x/y";
    const auto encoded = wire::encode(rows{sequence, filled(size, 1)});
    auto frame = wire::make_frame(l, encoded.body, encoded.attachments, &slot).value();
    if (batched) {
      const std::span<const std::byte> items[] = {frame};
      std::vector<std::byte> out(wire::batch_bytes(1, frame.size()));
      wire::write_batch(out, life, office->self().life, sequence, items);
      frame = std::move(out);
    }
    bus::part p{std::span<const std::byte>{frame}};
    ASSERT_TRUE(zmq_msg_send(p.raw(), dealer.raw(), 0) >= 0);
  }
  wire::segment_slot put(std::size_t size) {
    const std::uint64_t sizes[] = {size};
    auto lease = writer->reserve(sizes, office->self().life);
    const shared_bytes content[] = {filled(size, 1)};
    lease->write(content);
    lease->sent();
    return lease->slot();
  }
  void expect_rows(std::size_t size) {
    const auto got = b.next();
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->body.as<rows>()->n, sequence);
    EXPECT_EQ(got->body.as<rows>()->data, filled(size, 1));
  }

  run_dir dir;
  test_segment segment{segment_size};
  incarnation life{0xabc};
  mailbox b;
  std::unique_ptr<bus::post_office> office;
  std::shared_ptr<bus::send_segment> writer;
  bus::context context;
  bus::socket dealer;
  std::uint64_t sequence = 0;
};

TEST_F(bus_segment_hostile, counts_and_refuses_stale_and_corrupt_descriptors_and_goes_on) {
  const auto good = put(1000);
  send(good, 1000);
  expect_rows(1000);
  std::uint64_t refused = 0;
  for (const wire::segment_slot& bad :
       {wire::segment_slot{good.offset, good.bytes, 12345},
        wire::segment_slot{good.offset, good.bytes, 0},
        wire::segment_slot{good.offset + 8, good.bytes, good.generation},
        wire::segment_slot{1ull << 40, good.bytes, good.generation},
        wire::segment_slot{good.offset, 1ull << 40, good.generation}}) {
    send(bad, 1000);
    ++refused;
  }
  ASSERT_TRUE(writer->release(office->self().life, good.offset, good.generation));
  send(good, 1000); // used again after its release
  ++refused;
  send(put(1000), 999'999); // another size than the slot has
  ++refused;
  send(put(2000), 2000);
  expect_rows(2000);
  EXPECT_EQ(office->stats().segment_refused, refused);
  EXPECT_EQ(b.size(), 0u);
}

TEST_F(bus_segment_hostile, takes_descriptors_out_of_batches) {
  send(put(1000), 1000, true);
  expect_rows(1000);
  send({0, 1088, 99}, 1000, true);
  send(put(3000), 3000, true);
  expect_rows(3000);
  EXPECT_EQ(office->stats().segment_refused, 1u);
}

TEST_F(bus_segment_hostile, reads_nothing_from_a_life_that_was_removed) {
  const auto held_slot = put(1000);
  send(held_slot, 1000);
  const auto held = b.next();
  ASSERT_TRUE(held.has_value());
  ASSERT_TRUE(office->add_route({"/x", life, "ipc:///tmp/none.c", "ipc:///tmp/none.b", ""}).ok());
  office->remove_route("/x", error{ec::peer_lost, "expelled"});
  send(put(1000), 1000);
  EXPECT_TRUE(eventually([&] { return office->stats().stale_frames == 1; }));
  EXPECT_EQ(held->body.as<rows>()->data, filled(1000, 1));
  EXPECT_EQ(b.size(), 0u);
}

} // namespace
} // namespace di::test
