// SPDX-License-Identifier: Apache-2.0
// Goal: whatever is held and let go in whatever order, on whatever thread, no row changes under a
// reader and every slot comes back. Method: two offices with a small segment each, seeded sizes,
// receivers that keep rows for a random time and check every byte when they let go.
#include "tests/support/bus_pair.hpp"
#include "tests/support/segments.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <random>

namespace di::test {
namespace {

constexpr std::uint64_t segment_size = 256u << 10;
constexpr incarnation life_one{0x51}, life_two{0x52};
constexpr std::uint64_t mails = 3'000;

std::byte expected(std::uint64_t n, std::size_t i) {
  return static_cast<std::byte>(n * 31 + i * 7);
}

shared_bytes filled(std::uint64_t n, std::size_t size) {
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i)
    out[i] = expected(n, i);
  return shared_bytes::adopt(std::move(out));
}

/// One side: sends on a thread of its own, receives on another, each seeded.
class storm_side {
public:
  storm_side(bus::post_office& office, address self, address other, std::uint64_t seed)
      : office_{office}, self_{std::move(self)}, other_{std::move(other)}, seed_{seed} {
    bound_ = office_.bind(self_, box_.deliver()).ok();
  }
  void start(const storm_side& receiver) {
    taken_by_other_ = &receiver.taken_;
    sender_ = std::thread{[this] { send(); }};
    receiver_ = std::thread{[this] { receive(); }};
  }
  void join() {
    sender_.join();
    receiver_.join();
  }
  bool bound() const { return bound_; }
  std::uint64_t received() const { return received_; }
  std::uint64_t wrong() const { return wrong_; }

private:
  void send() {
    std::mt19937_64 random{seed_};
    for (std::uint64_t n = 0; n < mails; ++n) {
      const std::size_t size = random() % 4 == 0 ? random() % 60'000 : random() % 3'000;
      // Not far ahead of the reader, or all slots are on the way and few are read.
      for (std::uint64_t taken = *taken_by_other_; n >= taken + 32; taken = *taken_by_other_)
        taken_by_other_->wait(taken);
      const envelope mail = tell(other_, self_, rows{n, filled(n, size)});
      while (!office_.post(mail))
        std::this_thread::yield(); // out of credit
    }
  }
  void receive() {
    std::mt19937_64 random{seed_ + 1};
    std::vector<envelope> held;
    const auto let_go = [&](std::size_t at) {
      const rows& r = *held[at].body.as<rows>();
      for (std::size_t i = 0; i < r.data.size(); ++i)
        wrong_ += r.data.data()[i] != expected(r.n, i);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    };
    for (std::uint64_t n = 0; n < mails; ++n) {
      auto got = box_.next();
      if (!got || got->body.as<rows>() == nullptr || got->body.as<rows>()->n != n)
        break;
      ++received_;
      ++taken_;
      taken_.notify_one();
      held.push_back(std::move(*got));
      while (held.size() > random() % 30)
        let_go(random() % held.size());
    }
    while (!held.empty())
      let_go(held.size() - 1);
    taken_ = mails; // lets the sender end whatever happened
    taken_.notify_one();
  }

  bus::post_office& office_;
  address self_, other_;
  std::uint64_t seed_;
  mailbox box_;
  bool bound_ = false;
  std::atomic<std::uint64_t> taken_{0};
  const std::atomic<std::uint64_t>* taken_by_other_ = nullptr;
  std::thread sender_, receiver_;
  std::uint64_t received_ = 0, wrong_ = 0; ///< the receiver's, read after join()
};

TEST(bus_segment_storm, changes_no_row_under_a_reader_and_gets_every_slot_back) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    const test_segment segment_one{segment_size}, segment_two{segment_size};
    run_dir dir;
    const auto one = start(
        with_segments(ipc_options(dir, "/rank/0", life_one), segment_one, segment_two, life_two));
    const auto two = start(
        with_segments(ipc_options(dir, "/rank/1", life_two), segment_two, segment_one, life_one));
    ASSERT_TRUE(one->add_route(two->self()).ok());
    ASSERT_TRUE(two->add_route(one->self()).ok());
    storm_side a{*one, "/rank/0/a", "/rank/1/b", 10 * seed};
    storm_side b{*two, "/rank/1/b", "/rank/0/a", 10 * seed + 5};
    ASSERT_TRUE(a.bound() && b.bound());
    a.start(b);
    b.start(a);
    a.join();
    b.join();
    EXPECT_EQ(a.received(), mails);
    EXPECT_EQ(b.received(), mails);
    EXPECT_EQ(a.wrong() + b.wrong(), 0u);
    for (const auto* office : {one.get(), two.get()}) {
      const auto s = office->stats();
      EXPECT_GT(s.segment_mails_sent, 100u);
      EXPECT_EQ(s.segment_refused, 0u);
      EXPECT_EQ(s.segment_overwritten, 0u);
      // A reader keeps back less than a bundle.
      EXPECT_TRUE(eventually(
          [&] { return office->stats().segment_slots < limits::segment_releases_bundled; }));
    }
  }
}

} // namespace
} // namespace di::test
