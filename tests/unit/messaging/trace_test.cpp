// SPDX-License-Identifier: Apache-2.0
// The span ring: order, overflow, writers and readers at the same time, tracks.
#include "messaging/base/trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

namespace di::trace {
namespace {

class span_ring : public ::testing::Test {
protected:
  ~span_ring() override { disable(); }
};

TEST_F(span_ring, names_every_kind_and_finds_it_by_its_name) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kinds; ++i) {
    const auto k = static_cast<kind>(i);
    names.insert(to_string(k));
    EXPECT_EQ(kind_of(to_string(k)), k);
  }
  EXPECT_EQ(names.size(), kinds);
  EXPECT_FALSE(names.contains(""));
  EXPECT_EQ(kind_of("no_such_kind"), std::nullopt);
}

TEST_F(span_ring, records_nothing_while_it_is_off) {
  enable(64);
  disable();
  { span s{kind::step}; }
  mark(kind::take, request_id{3});
  record(kind::wait, 1, 2);
  stopwatch w;
  w.start();
  EXPECT_FALSE(w.running());
  w.stop(kind::wait);
  EXPECT_TRUE(read().events.empty());
  EXPECT_EQ(read().next, 0U);
}

TEST_F(span_ring, gives_back_what_was_recorded_with_all_its_parts) {
  enable(64);
  const on_track here{track("/rank/7")};
  const std::int64_t before = now_ns();
  {
    span s{kind::attention, {.rows = 3, .layer = 5}, request_id{0xFFFF'FFFF'FFFF'FFFFU}};
    s.args().rows = 4;
    span dropped{kind::draft};
    dropped.drop();
  }
  stopwatch w;
  w.start();
  EXPECT_TRUE(w.running());
  w.stop(kind::wait, {.layer = 0, .value = 1.5F});
  w.stop(kind::wait); // stopped already
  mark(kind::take, request_id{9});
  const part p = read();
  ASSERT_EQ(p.events.size(), 3U);
  EXPECT_EQ(p.lost, 0U);
  EXPECT_EQ(p.next, 3U);
  const event& a = p.events[0];
  EXPECT_EQ(a.what, kind::attention);
  EXPECT_EQ(p.tracks.at(a.track), "/rank/7");
  EXPECT_EQ(a.flow, request_id{0xFFFF'FFFF'FFFF'FFFFU});
  EXPECT_EQ(a.args.rows, 4U);
  EXPECT_EQ(a.args.layer, 5);
  EXPECT_GE(a.begin_ns, before);
  EXPECT_GE(a.end_ns, a.begin_ns);
  EXPECT_EQ(p.events[1].what, kind::wait);
  EXPECT_EQ(p.events[1].args.value, 1.5F);
  EXPECT_EQ(p.events[1].args.layer, 0);
  EXPECT_EQ(p.events[2].begin_ns, p.events[2].end_ns);
  EXPECT_GE(p.clocks.monotonic_ns, p.events[2].end_ns);
  EXPECT_GT(p.clocks.wall_ns, std::int64_t{1'700'000'000} * 1'000'000'000);
}

TEST_F(span_ring, overwrites_the_oldest_and_says_how_many) {
  enable(60); // 64 slots
  for (std::int64_t i = 1; i <= 200; ++i)
    record(kind::experts, i, i + 1);
  part p = read();
  EXPECT_EQ(p.lost, 136U);
  EXPECT_EQ(p.first, 136U);
  EXPECT_EQ(p.next, 200U);
  ASSERT_EQ(p.events.size(), 64U);
  for (std::size_t i = 0; i < p.events.size(); ++i)
    EXPECT_EQ(p.events[i].begin_ns, static_cast<std::int64_t>(137 + i));
  p = read(190, 4); // page by page
  EXPECT_EQ(p.lost, 0U);
  EXPECT_EQ(p.next, 194U);
  EXPECT_TRUE(p.more);
  EXPECT_FALSE(read(194).more);
  ASSERT_EQ(p.events.size(), 4U);
  EXPECT_EQ(p.events[0].begin_ns, 191);
  EXPECT_TRUE(read(200).events.empty());
  EXPECT_EQ(read(500).next, 500U);
}

TEST_F(span_ring, keeps_every_event_whole_under_concurrent_writers_and_a_reader) {
  constexpr int writers = 4, each = 20'000;
  enable(1'024);
  std::atomic<bool> done{false};
  std::uint64_t read_back = 0;
  const auto whole = [](const part& p) {
    for (const event& e : p.events) {
      // All fields of one event follow from one number; a torn one would not agree.
      const auto n = static_cast<std::uint64_t>(e.begin_ns);
      ASSERT_EQ(e.end_ns, static_cast<std::int64_t>(n * 3));
      ASSERT_EQ(e.flow.v, n * 7);
      ASSERT_EQ(e.args.rows, static_cast<std::uint32_t>(n));
      ASSERT_EQ(e.args.layer, static_cast<std::int32_t>(n % 1'000));
    }
  };
  std::thread reader{[&] {
    std::uint64_t at = 0;
    while (!done.load() || read_back == 0) { // it may get no turn before the writers are done
      const part p = read(at);
      whole(p);
      read_back += p.events.size();
      at = p.next;
    }
  }};
  std::vector<std::thread> threads;
  for (int t = 0; t < writers; ++t)
    threads.emplace_back([t] {
      for (int i = 1; i <= each; ++i) {
        const auto n = static_cast<std::uint64_t>(t) * each + static_cast<std::uint64_t>(i);
        record(
            kind::step, static_cast<std::int64_t>(n), static_cast<std::int64_t>(n * 3),
            {.rows = static_cast<std::uint32_t>(n), .layer = static_cast<std::int32_t>(n % 1'000)},
            request_id{n * 7});
      }
    });
  for (std::thread& t : threads)
    t.join();
  done = true;
  reader.join();
  const part p = read();
  whole(p);
  EXPECT_EQ(p.next, static_cast<std::uint64_t>(writers * each));
  // A writer that was overtaken by a whole round may have given up its slot; that is rare.
  EXPECT_GT(p.events.size(), 900U);
  EXPECT_LE(p.events.size(), 1'024U);
  EXPECT_GT(read_back, 0U);
}

TEST_F(span_ring, nests_tracks_and_names_each_once) {
  const track_id a = track("/rank/1"), b = track("/rank/1/expert_shard");
  EXPECT_NE(a, b);
  EXPECT_EQ(track("/rank/1"), a);
  enable(16);
  {
    const on_track outer{a};
    {
      const on_track inner{b};
      mark(kind::experts);
    }
    mark(kind::step);
  }
  mark(kind::wait);
  const part p = read();
  ASSERT_EQ(p.events.size(), 3U);
  EXPECT_EQ(p.events[0].track, b);
  EXPECT_EQ(p.events[1].track, a);
  EXPECT_EQ(p.events[2].track, 0);
}

} // namespace
} // namespace di::trace
