// SPDX-License-Identifier: Apache-2.0
// Sessions whose clients read slowly.
#include "tests/support/serve_world.hpp"

namespace di::serve {
namespace {

using di::test::chat_body;
using di::test::content_of;
using di::test::events_of;
using di::test::released;
using di::test::serve_world;
using engine::json;
using proto::finish_reason;

TEST(session, holds_tokens_as_ids_while_its_reader_is_slow) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true));
  c->bound = 200;
  const auto& o = w.desk->orders.at(0);
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += "word ";
  for (const auto id : serve_world::ids(text)) {
    o.ear->tokens(released({id}));
    c->run();
  }
  EXPECT_LT(c->stream.size(), 2'000U);
  o.ear->tokens(released({1}, 0, finish_reason::stop));
  c->run();
  for (int i = 0; i < 1'000 && !c->ended; ++i)
    c->drain();
  EXPECT_TRUE(c->ended);
  EXPECT_EQ(content_of(events_of(c->stream)), text);
}

TEST(session, loses_no_last_event_of_a_slow_reader) {
  for (std::size_t bound = 100; bound < 700; bound += 10) {
    serve_world w;
    auto body = chat_body(true);
    body["stream_options"] = {{"include_usage", true}};
    const auto c = w.post("/v1/chat/completions", body);
    c->bound = bound;
    const auto& o = w.desk->orders.at(0);
    for (const auto id : serve_world::ids("one two three")) {
      o.ear->tokens(released({id}));
      c->run();
    }
    for (int i = 0; i < 10; ++i) // only the end waits then
      c->drain();
    o.ear->tokens(released({1}, 0, finish_reason::stop));
    c->run();
    for (int i = 0; i < 1'000 && !c->ended; ++i)
      c->drain();
    const auto events = events_of(c->stream);
    ASSERT_GT(events.size(), 2U);
    EXPECT_EQ(events.back().data, "[DONE]") << bound;
    EXPECT_TRUE(json::parse(events[events.size() - 2].data).contains("usage")) << bound;
    EXPECT_EQ(w.home.sessions(), 0U);
  }
}

TEST(session, cuts_a_failed_stream_whose_reader_has_no_room_for_the_error) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true));
  c->bound = 1;
  const auto& o = w.desk->orders.at(0);
  o.ear->tokens(released(serve_world::ids("Hello")));
  c->run();
  o.ear->ended({finish_reason::error, -1, 0, ec::peer_lost, "all ranks left"}, 0);
  c->run();
  EXPECT_TRUE(c->aborted) << "it would seem to be whole";
  EXPECT_FALSE(c->ended);
  EXPECT_EQ(w.home.sessions(), 0U);
}

TEST(session, ends_a_choice_at_a_stop_string_even_for_a_slow_reader) {
  serve_world w;
  auto body = chat_body(true);
  body["stop"] = "END";
  const auto c = w.post("/v1/chat/completions", body);
  c->bound = 1;
  const auto& o = w.desk->orders.at(0);
  EXPECT_TRUE(o.what.spec.sampling.stop.empty()) << "it ends the answer, not the reasoning";
  for (const auto id : serve_world::ids("some text END and more")) {
    o.ear->tokens(released({id}));
    c->run();
  }
  ASSERT_EQ(w.desk->ended.size(), 1U);
  EXPECT_EQ(w.desk->ended[0].stop_index, 0);
  o.ear->tokens(released({}, 0, finish_reason::stop));
  c->run();
  for (int i = 0; i < 1'000 && !c->ended; ++i)
    c->drain();
  EXPECT_EQ(content_of(events_of(c->stream)), "some text ");
}

TEST(session, ends_a_choice_with_its_only_call_even_for_a_slow_reader) {
  const std::string calls = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜";
  const std::string more = " invoke>\n<｜DSML｜ invoke name=\"g\">\n</｜DSML｜ invoke>";
  for (const bool stream : {false, true}) {
    serve_world w;
    auto body = chat_body(stream);
    body["tools"] = json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
    body["parallel_tool_calls"] = false;
    const auto c = w.post("/v1/chat/completions", body);
    c->bound = 1;
    const auto& o = w.desk->orders.at(0);
    for (const auto id : serve_world::ids(calls + more)) {
      o.ear->tokens(released({id}));
      c->run();
    }
    ASSERT_EQ(w.desk->ended.size(), 1U);
    EXPECT_EQ(w.desk->ended[0].stop_index, -1);
    EXPECT_EQ(w.desk->ended[0].kept_tokens, serve_world::ids(calls).size());
    o.ear->tokens(released({}, 0, finish_reason::stop));
    c->run();
    for (int i = 0; i < 1'000 && stream && !c->ended; ++i)
      c->drain();
    const std::string answer = stream ? c->stream : c->whole->body;
    EXPECT_NE(answer.find(R"("finish_reason":"tool_calls")"), std::string::npos);
    EXPECT_NE(answer.find(R"("name":"f")"), std::string::npos);
    EXPECT_EQ(answer.find(R"("name":"g")"), std::string::npos);
  }
}

} // namespace
} // namespace di::serve
