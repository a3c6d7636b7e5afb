// SPDX-License-Identifier: Apache-2.0
// Ring files and the picture made of them.
#include "launch/trace_file.hpp"
#include "launch/trace_picture.hpp"
#include "messaging/base/trace.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <random>

namespace di::launch {
namespace {

using nlohmann::json;
using trace::kind;

proto::trace_event event(kind what, std::int64_t begin, std::int64_t end, std::uint16_t track = 1,
                         std::uint64_t flow = 0) {
  proto::trace_event e;
  e.what = static_cast<std::uint8_t>(what);
  e.track = track;
  e.begin_ns = begin;
  e.end_ns = end;
  e.flow = request_id{flow};
  return e;
}

proto::trace_part part(const std::string& process, std::vector<proto::trace_event> events,
                       const std::string& host = "here",
                       std::int64_t wall_minus_monotonic = 1'000) {
  proto::trace_part p;
  p.process = process;
  p.host = host;
  p.monotonic_ns = 5'000;
  p.wall_ns = 5'000 + wall_minus_monotonic;
  p.tracks = {"", process + "/a", process + "/b"};
  p.events = std::move(events);
  return p;
}

struct drawn {
  picture_summary summary;
  json events;

  std::vector<json> of(std::string_view phase) const {
    std::vector<json> found;
    for (const json& e : events)
      if (e.at("ph") == phase)
        found.push_back(e);
    return found;
  }
};

drawn draw(const std::vector<proto::trace_part>& parts) {
  std::string text;
  auto summary = write_picture(parts, [&](std::string_view block) -> result<void> {
    text += block;
    return {};
  });
  EXPECT_TRUE(summary.ok());
  return {*summary, json::parse(text).at("traceEvents")};
}

/// Spans of one lane must nest: as the viewers demand.
void expect_nested(const drawn& d) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> lanes;
  for (const json& e : d.of("X"))
    lanes[{e.at("pid"), e.at("tid")}].emplace_back(
        e.at("ts").get<double>(), e.at("ts").get<double>() + e.at("dur").get<double>());
  for (auto& [lane, spans] : lanes)
    for (std::size_t i = 0; i < spans.size(); ++i)
      for (std::size_t k = i + 1; k < spans.size(); ++k) {
        const auto& [a, b] = spans[i];
        const auto& [c, e] = spans[k];
        const double eps = 1e-4; // [us] decimal digits, read as doubles
        EXPECT_TRUE(b <= c + eps || e <= a + eps || (a <= c + eps && e <= b + eps)
                    || (c <= a + eps && b <= e + eps))
            << a << ".." << b << " and " << c << ".." << e;
      }
}

TEST(trace_file, gives_back_the_parts_that_were_written) {
  auto a = part("/rank/0", {event(kind::step, 1, 9, 1, 0xFFFF'FFFF'FFFF'FFFFU)});
  a.lost = 3;
  a.events[0].rows = 4'000'000'000U;
  a.events[0].layer = 7;
  a.events[0].value = 1.25F;
  a.tracks[2] = "odd \"name\"\n";
  const auto b = part("/control", {});
  const auto read = parse_trace(trace_file_head() + trace_line(a) + trace_line(b), "f");
  ASSERT_TRUE(read.ok()) << read.error().what;
  ASSERT_EQ(read->size(), 2U);
  const proto::trace_part& p = (*read)[0];
  EXPECT_EQ(p.process, "/rank/0");
  EXPECT_EQ(p.lost, 3U);
  EXPECT_EQ(p.tracks, a.tracks);
  ASSERT_EQ(p.events.size(), 1U);
  EXPECT_EQ(p.events[0].flow, a.events[0].flow);
  EXPECT_EQ(p.events[0].rows, 4'000'000'000U);
  EXPECT_EQ(p.events[0].layer, 7);
  EXPECT_EQ(p.events[0].value, 1.25F);
  EXPECT_EQ(p.events[0].end_ns, 9);
}

TEST(trace_file, locates_every_defect) {
  const std::string head = trace_file_head();
  const std::string good = trace_line(part("/rank/0", {event(kind::wait, 5, 6)}));
  const auto what = [](const std::string& text) {
    const auto read = parse_trace(text, "run.trace");
    return read.ok() ? std::string{"accepted"} : read.error().what;
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    return what(head + good + bad);
  };
  EXPECT_NE(what("").find("run.trace: is empty"), std::string::npos);
  EXPECT_NE(what("[]\n").find("run.trace:1: not a JSON object"), std::string::npos);
  EXPECT_NE(what("{\"format\":\"x\"}\n").find("run.trace:1: not a trace"), std::string::npos);
  EXPECT_NE(what(R"({"format":"di-trace-1","kinds":["step","nap"]})").find("unknown span kind nap"),
            std::string::npos);
  EXPECT_NE(with("}\n", "\n").find("run.trace:3: "), std::string::npos);
  EXPECT_NE(with("[[3,", "[[400,").find("run.trace:3: kind 400 of"), std::string::npos);
  EXPECT_NE(with("[[3,", "[[3,9"), "accepted");
  EXPECT_NE(with(",5,6,", ",6,5,").find("run.trace:3: span from 6 to 5 ns"), std::string::npos);
  EXPECT_NE(with(",5,6,", ",-5,6,").find("span from -5"), std::string::npos);
  EXPECT_NE(with(",5,6,", ",5.5,6,").find("begin is no integer"), std::string::npos);
  EXPECT_NE(with(",5,6,", ",5,").find("a list of 8 numbers"), std::string::npos);
  EXPECT_NE(with("\"events\"", "\"evens\"").find("run.trace:3: "), std::string::npos);
  EXPECT_EQ(what(head + good), "accepted");
}

TEST(trace_picture, names_processes_and_tracks) {
  const auto d =
      draw({part("/rank/10", {event(kind::step, 10, 20), event(kind::experts, 10, 20, 2)}),
            part("/control", {event(kind::admit, 12, 13)})});
  EXPECT_EQ(d.summary.processes, 2U);
  EXPECT_EQ(d.summary.tracks, 3U);
  EXPECT_EQ(d.summary.spans, 3U);
  std::map<std::string, int> names;
  for (const json& e : d.of("M"))
    if (e.at("args").contains("name"))
      ++names[e.at("args").at("name").get<std::string>()];
  EXPECT_EQ(names,
            (std::map<std::string, int>{{"control", 1}, {"rank/10", 1}, {"a", 2}, {"b", 1}}));
}

TEST(trace_picture, puts_spans_that_overlap_on_lanes_that_nest) {
  const auto d =
      draw({part("/rank/0", {event(kind::step, 100, 200), event(kind::wait, 110, 190),
                             event(kind::commit, 120, 130), event(kind::step, 150, 260),
                             event(kind::draft, 160, 170), event(kind::take, 200, 200)})});
  expect_nested(d);
  EXPECT_EQ(d.summary.spans, 6U);
  EXPECT_EQ(d.summary.tracks, 2U);
}

TEST(trace_picture, nests_lanes_of_random_spans) {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random{seed};
    std::vector<proto::trace_event> events;
    for (int i = 0; i < 60; ++i) {
      const auto begin = static_cast<std::int64_t>(random() % 300);
      events.push_back(event(kind::step, begin, begin + static_cast<std::int64_t>(random() % 80)));
    }
    const auto d = draw({part("/rank/0", events)});
    expect_nested(d);
    EXPECT_EQ(d.of("X").size(), 60U);
  }
}

TEST(trace_picture, ties_the_spans_of_a_request_in_their_order) {
  const auto d = draw(
      {part("/rank/0", {event(kind::prefill, 30, 60, 1, 7)}),
       part("/control", {event(kind::submit, 10, 11, 1, 7), event(kind::record, 20, 25, 2, 7),
                         event(kind::release, 70, 71, 1, 7), event(kind::submit, 15, 16, 1, 8)})});
  EXPECT_EQ(d.summary.flows, 1U); // request 8 is seen once: no arrow
  std::vector<std::pair<double, std::string>> steps;
  for (const char* phase : {"s", "t", "f"})
    for (const json& e : d.of(phase)) {
      EXPECT_EQ(e.at("id"), "0x7");
      steps.emplace_back(e.at("ts").get<double>(), phase);
      bool bound = false; // an arrow ends at a span of its own track
      for (const json& x : d.of("X"))
        bound = bound
                || (x.at("pid") == e.at("pid") && x.at("tid") == e.at("tid")
                    && x.at("ts") == e.at("ts") && x.at("args").value("request", "") != "");
      EXPECT_TRUE(bound);
    }
  std::sort(steps.begin(), steps.end());
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_EQ(steps[0].second, "s");
  EXPECT_EQ(steps[1].second, "t");
  EXPECT_EQ(steps[2].second, "t");
  EXPECT_EQ(steps[3].second, "f");
}

TEST(trace_picture, gives_the_spans_of_a_request_the_trace_of_its_client) {
  auto gateway = part("/gateway/2", {event(kind::finish, 5, 90, 1, 7)});
  gateway.tracks[1] = "trace 4bf92f3577b34da6a3ce929d0e0e4736";
  const auto d = draw(
      {part("/rank/0", {event(kind::prefill, 30, 60, 1, 7), event(kind::prefill, 61, 62, 1, 8)}),
       gateway});
  std::size_t with = 0;
  for (const json& x : d.of("X"))
    with += x.at("args").value("trace_id", "") == "4bf92f3577b34da6a3ce929d0e0e4736" ? 1 : 0;
  EXPECT_EQ(with, 2U) << "the request's own span and its prefill, not that of another";
}

TEST(trace_picture, lays_hosts_on_one_line_by_their_wall_clocks) {
  // The same moment: 100 on a host whose clock began at 1,000, 600 on one that began at 500.
  const auto d = draw({part("/rank/0", {event(kind::step, 100, 110)}, "one", 1'000),
                       part("/rank/1", {event(kind::step, 600, 610)}, "two", 500),
                       part("/rank/2", {event(kind::step, 105, 110)}, "one", 1'003)});
  std::map<int, double> at;
  for (const json& e : d.of("X"))
    at[e.at("pid").get<int>()] = e.at("ts").get<double>();
  EXPECT_EQ(at[1000], 0.0);
  EXPECT_EQ(at[1001], 0.0);
  EXPECT_DOUBLE_EQ(at[1002], 0.005); // one host, one clock: its second pair does not matter
}

TEST(trace_picture, joins_the_parts_of_one_process_and_is_valid_when_empty) {
  auto a = part("/rank/0", {event(kind::step, 1, 2)}),
       b = part("/rank/0", {event(kind::step, 3, 4)});
  a.lost = 5;
  EXPECT_EQ(draw({a, b}).summary.processes, 1U);
  EXPECT_EQ(draw({a, b}).summary.spans, 2U);
  EXPECT_EQ(draw({a, b}).summary.lost, 5U);
  EXPECT_TRUE(draw({}).events.empty());
}

TEST(trace_picture, passes_an_error_of_its_writer_on) {
  const std::vector<proto::trace_part> parts{part("/rank/0", {event(kind::step, 1, 2)})};
  const auto summary = write_picture(
      parts, [](std::string_view) -> result<void> { return fail(ec::io_error, "disk full"); });
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().what, "disk full");
}

} // namespace
} // namespace di::launch
