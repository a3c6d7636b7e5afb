// SPDX-License-Identifier: Apache-2.0
// Header lists, percent decoding, query parameters, heads of answers, the output queue.
#include "messaging/http/answer_head.hpp"
#include "messaging/http/output_queue.hpp"
#include "messaging/http/request.hpp"

#include <gtest/gtest.h>

namespace di::http {
namespace {

TEST(header_list, finds_names_without_case) {
  header_list h{{"Content-Type", "a"}, {"X-A", "1"}, {"x-a", "2"}};
  EXPECT_EQ(h.get("content-type"), "a");
  EXPECT_EQ(h.get("X-a"), "1");
  EXPECT_EQ(h.count("x-A"), 2u);
  EXPECT_FALSE(h.has("none"));
  h.set("X-A", "3");
  EXPECT_EQ(h.count("x-a"), 1u);
  EXPECT_EQ(h.get("x-a"), "3");
  h.remove("CONTENT-TYPE");
  EXPECT_EQ(h.size(), 1u);
}

TEST(header_list, finds_tokens_of_lists) {
  const header_list h{{"Connection", "keep-alive , Close"}, {"connection", "x"}};
  EXPECT_TRUE(h.has_token("connection", "close"));
  EXPECT_TRUE(h.has_token("connection", "X"));
  EXPECT_FALSE(h.has_token("connection", "keep"));
}

TEST(percent_decode, decodes_and_refuses_broken_escapes) {
  EXPECT_EQ(percent_decode("a%20b%2f+"), "a b/+");
  EXPECT_EQ(percent_decode("a+b", true), "a b");
  for (const auto* broken : {"%", "%a", "%zz", "x%2"})
    EXPECT_EQ(percent_decode(broken), std::nullopt) << broken;
}

TEST(request, reads_query_parameters) {
  request r;
  r.query = "a=1&stream=tr%75e&empty=&flag&a=2";
  EXPECT_EQ(r.parameter("a"), "1");
  EXPECT_EQ(r.parameter("stream"), "true");
  EXPECT_EQ(r.parameter("empty"), "");
  EXPECT_EQ(r.parameter("flag"), "");
  EXPECT_EQ(r.parameter("none"), std::nullopt);
}

TEST(answer_head, lets_no_value_break_out_of_its_line) {
  std::string out;
  append_head(out, 200,
              {{"X-A", "1\r\nX-Evil: 2"}, {"bad name", "x"}, {"Content-Length", "9"}, {"", "x"}},
              framing::length, 3, true, false);
  EXPECT_EQ(out.find("\r\nX-Evil"), std::string::npos);
  EXPECT_NE(out.find("X-A: 1  X-Evil: 2\r\n"), std::string::npos);
  EXPECT_EQ(out.find("bad name"), std::string::npos);
  EXPECT_NE(out.find("\r\nContent-Length: 3\r\n"), std::string::npos);
  EXPECT_EQ(out.find("Content-Length: 9"), std::string::npos);
  EXPECT_TRUE(out.starts_with("HTTP/1.1 200 OK\r\nDate: "));
  EXPECT_TRUE(out.ends_with("\r\n\r\n"));
}

TEST(output_queue, gives_all_bytes_in_order_whatever_is_consumed) {
  for (std::size_t step = 1; step < 40; ++step) {
    output_queue q;
    std::string want, got;
    for (int i = 0; i < 30; ++i) {
      const std::string piece(static_cast<std::size_t>(i % 7 == 0 ? 9'000 : i),
                              static_cast<char>('a' + i % 26));
      want += piece;
      q.append(std::string{piece});
      std::size_t shown = 0;
      std::string front;
      q.parts(3, [&](std::string_view part) {
        shown += part.size();
        front += part;
      });
      const auto n = std::min(shown, step * 500);
      q.append("x"); // while shown
      want += "x";
      got += front.substr(0, n);
      q.consume(n);
    }
    while (!q.empty()) {
      std::string front;
      q.parts(16, [&](std::string_view part) { front += part; });
      got += front;
      q.consume(front.size());
    }
    ASSERT_EQ(got, want) << step;
  }
}

} // namespace
} // namespace di::http
