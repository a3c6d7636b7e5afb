// SPDX-License-Identifier: Apache-2.0
// TRACER and TRACE COLLECTOR: rings page by page, processes that do not answer.
#include "actors/tracing.hpp"
#include "messaging/base/trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace di::actors {
namespace {

class rings : public ::testing::Test {
protected:
  ~rings() override { trace::disable(); }
};

TEST_F(rings, are_read_page_by_page_until_nothing_is_left) {
  trace::enable(1'024);
  const trace::on_track here{trace::track("/rank/5/rank")};
  for (std::int64_t i = 1; i <= 25; ++i)
    trace::record(trace::kind::wait, i, i + 1, {.rows = 2, .layer = 1, .value = 0.5F},
                  request_id{9});
  const tracer_core core{"/rank/5"};
  std::uint64_t next = 0;
  std::vector<std::int64_t> begins;
  for (int page = 0; page < 3; ++page) {
    const auto answer = core.on(proto::get_trace{next, 10, true});
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer->process, "/rank/5");
    EXPECT_EQ(answer->more, page < 2);
    next = answer->next;
    for (const auto& e : answer->events) {
      begins.push_back(e.begin_ns);
      EXPECT_EQ(e.end_ns, e.begin_ns + 1);
      EXPECT_EQ(answer->tracks.at(e.track), "/rank/5/rank");
      EXPECT_EQ(e.flow, request_id{9});
      EXPECT_EQ(e.rows, 2U);
      EXPECT_EQ(e.layer, 1);
      EXPECT_EQ(e.value, 0.5F);
    }
  }
  EXPECT_EQ(begins.size(), 25U);
  EXPECT_TRUE(std::is_sorted(begins.begin(), begins.end()));
  EXPECT_FALSE(trace::enabled()); // stopped by the first question
}

struct collection {
  std::vector<proto::trace_part> parts;
  std::vector<result<void>> ends;
  bool disk_full = false;
  trace_collector_core core{{{"/control/tracer", "/rank/0/tracer"},
                             std::chrono::seconds{1},
                             [this](const proto::trace_part& p) -> result<void> {
                               if (disk_full)
                                 return fail(ec::io_error, "disk full");
                               parts.push_back(p);
                               return {};
                             },
                             [this](result<void> r) { ends.push_back(std::move(r)); }}};

  std::size_t requests(outbox& out) {
    std::size_t n = 0;
    for (const auto& e : out.take())
      n += std::holds_alternative<effect::request>(e);
    return n;
  }
  static parcel page(std::uint64_t next, bool more) {
    proto::trace_part p;
    p.next = next;
    p.more = more;
    return parcel::of(std::move(p));
  }
};

TEST(trace_collector, fetches_all_pages_of_all_processes_then_says_so_once) {
  collection c;
  outbox out;
  ASSERT_TRUE(c.core.on(proto::collect_trace{}, {}, out).ok());
  EXPECT_EQ(c.requests(out), 2U);
  ASSERT_TRUE(c.core.on(proto::collect_trace{}, {}, out).ok());
  EXPECT_EQ(c.requests(out), 0U);
  ASSERT_TRUE(c.core.on_answer(0, c.page(10, true), {}, out).ok());
  const auto effects = out.take();
  ASSERT_EQ(effects.size(), 1U);
  const auto* asked = std::get<effect::request>(effects[0]).body.as<proto::get_trace>();
  ASSERT_NE(asked, nullptr);
  EXPECT_EQ(asked->first, 10U);
  ASSERT_TRUE(c.core.on_answer(1, c.page(3, false), {}, out).ok());
  EXPECT_TRUE(c.ends.empty());
  ASSERT_TRUE(c.core.on_answer(0, c.page(12, false), {}, out).ok());
  ASSERT_EQ(c.ends.size(), 1U);
  EXPECT_TRUE(c.ends[0].ok());
  EXPECT_EQ(c.parts.size(), 3U);
}

TEST(trace_collector, names_what_it_could_not_get) {
  collection c;
  outbox out;
  ASSERT_TRUE(c.core.on(proto::collect_trace{}, {}, out).ok());
  ASSERT_TRUE(c.core.on_answer(1, fail(ec::deadline_exceeded, "no answer"), {}, out).ok());
  c.disk_full = true;
  ASSERT_TRUE(c.core.on_answer(0, c.page(1, true), {}, out).ok());
  ASSERT_EQ(c.ends.size(), 1U);
  ASSERT_FALSE(c.ends[0].ok());
  EXPECT_EQ(c.ends[0].error().what, "trace: /rank/0/tracer: no answer; /control/tracer: disk full");
}

} // namespace
} // namespace di::actors
