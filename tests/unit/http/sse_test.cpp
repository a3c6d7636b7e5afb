// SPDX-License-Identifier: Apache-2.0
// Server-sent events as bytes.
#include "messaging/http/sse.hpp"

#include <gtest/gtest.h>

namespace di::http {
namespace {

TEST(sse, writes_data_event_and_id) {
  EXPECT_EQ(sse_event("{\"a\":1}"), "data: {\"a\":1}\n\n");
  EXPECT_EQ(sse_event("x", "ping", "r:1"), "id: r:1\nevent: ping\ndata: x\n\n");
  EXPECT_EQ(sse_event(""), "data: \n\n");
}

TEST(sse, splits_data_at_every_kind_of_line_end) {
  EXPECT_EQ(sse_event("a\nb\r\nc\rd"), "data: a\ndata: b\ndata: c\ndata: d\n\n");
  EXPECT_EQ(sse_event("a\n"), "data: a\ndata: \n\n");
}

TEST(sse, lets_no_field_break_out_of_its_line) {
  EXPECT_EQ(sse_event("x", "e\nid: 7", std::string_view{"i\r\n\0d", 5}),
            "id: id\nevent: eid: 7\ndata: x\n\n");
  EXPECT_EQ(sse_comment("a\nb"), ": ab\n\n");
}

TEST(sse, writes_comments_and_retry) {
  EXPECT_EQ(sse_comment(), ": keep-alive\n\n");
  EXPECT_EQ(sse_retry(std::chrono::milliseconds{1500}), "retry: 1500\n\n");
}

} // namespace
} // namespace di::http
