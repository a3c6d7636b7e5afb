// SPDX-License-Identifier: Apache-2.0
// Which traceparent headers are taken, and what is passed on.
#include "launch/serve/trace_context.hpp"

#include <gtest/gtest.h>

namespace di::serve {
namespace {

constexpr const char* good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(trace_context, reads_and_writes_version_00) {
  const auto c = parse_traceparent(good);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(c->parent_id, "00f067aa0ba902b7");
  EXPECT_TRUE(c->sampled);
  EXPECT_EQ(c->traceparent(), good);
  EXPECT_FALSE(
      parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0a")->sampled);
  EXPECT_EQ(parse_traceparent(std::string{" "} + good + "\t"), c);
}

TEST(trace_context, reads_later_versions_as_far_as_they_are_known) {
  EXPECT_TRUE(parse_traceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"));
  EXPECT_FALSE(parse_traceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more"));
}

TEST(trace_context, takes_what_is_malformed_for_absent) {
  for (const char* bad : {
           "",
           "00",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
           "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
           "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
           "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
           "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
       })
    EXPECT_FALSE(parse_traceparent(bad)) << bad;
}

TEST(trace_context, continues_the_clients_trace_with_a_span_of_its_own) {
  const auto from = parse_traceparent(good);
  const auto next = continued(from, 7);
  EXPECT_EQ(next.trace_id, from->trace_id);
  EXPECT_NE(next.parent_id, from->parent_id);
  EXPECT_TRUE(next.sampled);
  EXPECT_TRUE(parse_traceparent(next.traceparent()));
  EXPECT_NE(continued(from, 8).parent_id, next.parent_id);
}

TEST(trace_context, begins_a_trace_where_there_is_none) {
  const auto a = continued(std::nullopt, 0), b = continued(std::nullopt, 1);
  EXPECT_TRUE(parse_traceparent(a.traceparent()));
  EXPECT_NE(a.trace_id, b.trace_id);
  EXPECT_FALSE(a.sampled);
}

} // namespace
} // namespace di::serve
