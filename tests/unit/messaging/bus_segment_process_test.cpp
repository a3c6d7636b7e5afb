// SPDX-License-Identifier: Apache-2.0
// Goal: a process that is stopped in the middle of writing a row, expelled and continued changes
// nothing for anyone. Method: a real child (tests/support/bus_peer.cpp) stops itself between the
// reservation of a slot and its publication.
#include "tests/support/bus_pair.hpp"
#include "tests/support/child.hpp"
#include "tests/support/segments.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

namespace di::test {
namespace {

constexpr std::uint64_t segment_size = 1u << 20;
constexpr incarnation life_parent{0x77};

shared_bytes filled(std::size_t size, std::uint64_t n) {
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i)
    out[i] = static_cast<std::byte>(i * 5 + n);
  return shared_bytes::adopt(std::move(out));
}

struct bus_segment_process : ::testing::Test {
  struct life_of_peer {
    incarnation life;
    std::unique_ptr<test_segment> segment;
    std::unique_ptr<child> process;
  };

  void SetUp() override {
    first = prepare(incarnation{0x1111});
    second = prepare(incarnation{0x2222});
    auto o = ipc_options(dir, "/control", life_parent);
    o.segments.own = own.writer();
    o.segments.neighbours = {{first.life, first.segment->reader()},
                             {second.life, second.segment->reader()}};
    office = start(std::move(o));
    ASSERT_TRUE(office->bind("/control/a", a.deliver()).ok());
    spawn(first);
  }
  life_of_peer prepare(incarnation life) {
    return {life, std::make_unique<test_segment>(segment_size), nullptr};
  }
  void spawn(life_of_peer& p) {
    const auto where = bus::ipc_endpoints(dir.path(), "rank-1", p.life);
    const bus::peer self = office->self();
    // dup() gives descriptors that survive exec.
    const bus::owned_fd writer{p.segment->writer()}, reader{own.reader()};
    p.process = std::make_unique<child>(std::vector<std::string>{
        DI_BUS_PEER, where->control, where->bulk, fmt::format("{:x}", p.life.v), self.prefix,
        fmt::format("{:x}", self.life.v), self.control_endpoint, self.bulk_endpoint,
        std::to_string(writer.get()), std::to_string(reader.get())});
    ASSERT_TRUE(p.process->ready());
    ASSERT_TRUE(office->add_route({"/rank/1", p.life, where->control, where->bulk, ""}).ok());
  }
  void ask_rows(std::uint64_t n, std::size_t size, duration timeout = patience) {
    ASSERT_TRUE(office
                    ->post(request(*office, "/rank/1/echo", "/control/a", rows{n, filled(size, n)},
                                   timeout))
                    .ok());
  }
  /// Tells the peer what to do; returns when it has heard.
  void order(const std::string& text) {
    ASSERT_TRUE(office->post(request(*office, "/rank/1/echo", "/control/a", ping{0, text})).ok());
    const auto heard = a.next();
    ASSERT_TRUE(heard && heard->kind == mail_kind::reply);
  }
  shared_bytes expect_rows(std::uint64_t n, std::size_t size) {
    const auto got = a.next();
    if (!got || got->kind != mail_kind::reply) {
      ADD_FAILURE() << "no reply to " << n;
      return {};
    }
    EXPECT_EQ(got->body.as<rows>()->n, n);
    EXPECT_EQ(got->body.as<rows>()->data, filled(size, n));
    return got->body.as<rows>()->data;
  }
  static bool stopped(pid_t pid) {
    std::ifstream in{fmt::format("/proc/{}/stat", pid)};
    std::string line;
    std::getline(in, line);
    const auto mark = line.rfind(')');
    return mark != std::string::npos && line.substr(mark + 2, 1) == "T";
  }

  run_dir dir;
  test_segment own{segment_size};
  mailbox a;
  life_of_peer first, second;
  std::unique_ptr<bus::post_office> office;
};

TEST_F(bus_segment_process, echoes_rows_through_both_segments) {
  for (std::uint64_t n = 0; n < 50; ++n) {
    ask_rows(n, 10'000);
    expect_rows(n, 10'000);
  }
  EXPECT_GE(office->stats().segment_mails_sent, 49u);
  EXPECT_GE(office->stats().segment_mails_received, 49u);
  EXPECT_EQ(office->stats().segment_refused, 0u);
}

TEST_F(bus_segment_process, a_writer_stopped_while_writing_expelled_and_continued_changes_nothing) {
  ask_rows(1, 10'000);
  expect_rows(1, 10'000);
  ask_rows(2, 10'000);
  const shared_bytes held = expect_rows(2, 10'000); // lies in the segment of the first life
  ASSERT_GT(office->stats().segment_mails_received, 0u);
  order("stop in write");
  ask_rows(3, 10'000);
  const pid_t pid = first.process->pid();
  ASSERT_TRUE(eventually([&] { return stopped(pid); }));

  // Expelled: its request bounces, its slots are not believed any more, another life answers.
  office->remove_route("/rank/1", error{ec::peer_lost, "expelled"});
  EXPECT_EQ(failure_code(a.next()), ec::peer_lost);
  spawn(second);
  ask_rows(4, 20'000);
  expect_rows(4, 20'000);
  ask_rows(5, 20'000);
  const shared_bytes later = expect_rows(5, 20'000);
  const auto before = office->stats();

  first.process->signal(SIGCONT); // it publishes the slot and sends its answer
  ASSERT_TRUE(eventually([&] { return office->stats().stale_frames > before.stale_frames; }));
  for (std::uint64_t n = 6; n < 20; ++n) {
    ask_rows(n, 20'000);
    expect_rows(n, 20'000);
  }
  EXPECT_EQ(a.size(), 0u);
  EXPECT_EQ(held, filled(10'000, 2));
  EXPECT_EQ(later, filled(20'000, 5));
  EXPECT_EQ(office->stats().segment_refused, 0u);
  EXPECT_EQ(office->stats().segment_overwritten, 0u);
  EXPECT_EQ(office->stats().malformed, before.malformed);
}

TEST_F(bus_segment_process, keeps_the_slots_of_a_stopped_reader_until_its_death_is_certain) {
  ask_rows(1, 10'000);
  expect_rows(1, 10'000);
  order("hold rows");
  for (std::uint64_t n = 2; n < 6; ++n)
    ask_rows(n, 100'000, std::chrono::milliseconds{200});
  for (std::uint64_t n = 2; n < 6; ++n)
    EXPECT_EQ(failure_code(a.next()), ec::deadline_exceeded);
  const auto held = office->stats().segment_slot_bytes;
  EXPECT_GE(held, 400'000u);
  first.process->stop();
  office->remove_route("/rank/1", error{ec::peer_lost, "suspected"});
  spawn(second);
  ask_rows(7, 10'000);
  expect_rows(7, 10'000);
  EXPECT_GE(office->stats().segment_slot_bytes, held);
  first.process->end(SIGKILL); // reaped: certain
  office->certify_death(first.life);
  EXPECT_TRUE(eventually([&] { return office->stats().segment_slot_bytes < 100'000; }));
}

} // namespace
} // namespace di::test
