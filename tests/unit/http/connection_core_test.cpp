// SPDX-License-Identifier: Apache-2.0
// What one connection reads and answers, with time and bytes made by the test.
#include "tests/unit/http/core_world.hpp"

#include <gtest/gtest.h>

namespace di::http {
namespace {

TEST(connection_core, answers_pipelined_requests_in_order_one_at_a_time) {
  world w;
  w.open();
  w.in(get + post("1") + get);
  ASSERT_EQ(w.asked.size(), 1u) << "the second waits for the first answer";
  EXPECT_EQ(w.asked[0].first.number, 1u);
  EXPECT_TRUE(w.last().respond(200, {}, "one"));
  w.loop->run();
  ASSERT_EQ(w.asked.size(), 2u);
  EXPECT_EQ(w.asked[1].first.body, "1");
  EXPECT_TRUE(w.last().respond(200, {}, "two"));
  w.loop->run();
  EXPECT_TRUE(w.last().respond(200, {}, "three"));
  const auto out = w.out();
  EXPECT_LT(out.find("one"), out.find("two"));
  EXPECT_LT(out.find("two"), out.find("three"));
  EXPECT_FALSE(w.core->finished());
  EXPECT_TRUE(w.core->wants_input());
}

TEST(connection_core, stops_dispatching_to_a_client_that_pipelines_and_does_not_read) {
  world w;
  w.setup.limits.client_buffer_bytes = 1000;
  int served = 0;
  w.calls.handler = [&](request, exchange_ptr e) {
    ++served;
    e->respond(200, {}, std::string(600, 'x'));
  };
  w.open();
  for (int i = 0; i < 10; ++i)
    w.in(get);
  EXPECT_EQ(served, 2);
  w.out();
  EXPECT_EQ(served, 10);
}

TEST(connection_core, reads_ahead_only_so_far) {
  world w;
  w.setup.limits.read_ahead_bytes = 100;
  w.open();
  w.in(get);
  EXPECT_TRUE(w.core->wants_input());
  w.in(std::string(100, 'x'));
  EXPECT_FALSE(w.core->wants_input());
}

TEST(connection_core, streams_in_chunks_and_goes_on) {
  world w;
  w.open();
  w.in(get);
  auto& e = w.last();
  EXPECT_EQ(e.write("early"), written::gone) << "no stream yet";
  EXPECT_TRUE(e.begin_stream(200, {{"Content-Type", "text/event-stream"}}));
  EXPECT_FALSE(e.respond(200, {}, "x"));
  EXPECT_EQ(e.write("hello"), written::ok);
  EXPECT_EQ(e.write(""), written::ok);
  e.end();
  EXPECT_EQ(e.write("late"), written::gone);
  const auto out = w.out();
  EXPECT_NE(out.find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_TRUE(out.ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n")) << out;
  EXPECT_FALSE(w.core->finished());
  w.in(get);
  EXPECT_EQ(w.asked.size(), 2u);
}

TEST(connection_core, gives_old_clients_a_stream_until_close) {
  world w;
  w.open();
  w.in("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  w.last().begin_stream(200, {});
  w.last().write("abc");
  w.last().end();
  const auto out = w.out();
  EXPECT_TRUE(out.ends_with("Connection: close\r\n\r\nabc")) << out;
  EXPECT_TRUE(w.core->wants_half_close());
}

TEST(connection_core, keeps_old_clients_that_ask_for_it) {
  world w;
  w.open();
  w.in("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  w.last().respond(200, {}, "abc");
  EXPECT_NE(w.out().find("Connection: keep-alive\r\n"), std::string::npos);
  EXPECT_FALSE(w.core->wants_half_close());
  w.in("GET / HTTP/1.0\r\n\r\n");
  w.last().respond(200, {}, "abc");
  w.out();
  EXPECT_TRUE(w.core->wants_half_close());
}

TEST(connection_core, sends_no_body_to_head_and_with_204) {
  world w;
  w.open();
  w.in("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
  w.last().respond(200, {}, "abc");
  auto out = w.out();
  EXPECT_NE(out.find("Content-Length: 3\r\n"), std::string::npos);
  EXPECT_TRUE(out.ends_with("\r\n\r\n"));
  w.in("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
  w.last().begin_stream(200, {});
  EXPECT_EQ(w.last().write("abc"), written::ok);
  w.last().end();
  EXPECT_TRUE(w.out().ends_with("chunked\r\n\r\n"));
  w.in(get);
  w.last().respond(204, {}, "abc");
  out = w.out();
  EXPECT_EQ(out.find("Content-Length"), std::string::npos);
  EXPECT_TRUE(out.ends_with("\r\n\r\n"));
}

TEST(connection_core, says_continue_only_when_the_body_is_wanted) {
  world w;
  w.setup.limits.body_bytes = 5;
  w.open();
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: ";
  w.in(head + "3\r\n\r\n");
  EXPECT_EQ(w.out(), "HTTP/1.1 100 Continue\r\n\r\n");
  w.in("abc");
  ASSERT_EQ(w.asked.size(), 1u);
  w.last().respond(200, {}, "");
  w.out();
  w.in(head + "6\r\n\r\n");
  EXPECT_EQ(status(w.out()), 413);
  EXPECT_TRUE(w.core->wants_half_close());
}

TEST(connection_core, lets_the_caller_refuse_before_the_body) {
  world w;
  w.calls.check_head = [](const request& r) -> std::optional<answer> {
    if (r.headers.has("authorization"))
      return std::nullopt;
    return answer{401, {}, "who?"};
  };
  w.open();
  w.in("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n");
  const auto out = w.out();
  EXPECT_EQ(status(out), 401);
  EXPECT_TRUE(out.ends_with("who?"));
  EXPECT_TRUE(w.asked.empty());
}

TEST(connection_core, answers_refusals_in_the_callers_format) {
  world w;
  w.calls.format = [](const refusal& r) {
    return answer{r.status,
                  {{"Content-Type", "application/json"}},
                  "{\"" + r.code + "\":\"" + r.asked->path + "\"}"};
  };
  w.open();
  w.in("POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n");
  EXPECT_TRUE(w.out().ends_with("{\"bad_content_length\":\"/v1/messages\"}"));
}

} // namespace
} // namespace di::http
