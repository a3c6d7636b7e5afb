// SPDX-License-Identifier: Apache-2.0
// Answers and event streams cut anywhere; what a chat sends and shows.
#include "launch/chat/chat_text.hpp"
#include "launch/chat/http_answer.hpp"
#include "launch/chat/http_client.hpp"
#include "launch/chat/sse_reader.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace di::launch {
namespace {

using nlohmann::json;

/// Feeds in pieces of one size.
std::pair<http_answer, std::string> read_in(const std::string& text, std::size_t piece) {
  http_answer a;
  std::string body;
  for (std::size_t i = 0; i < text.size(); i += piece)
    EXPECT_TRUE(a.feed(std::string_view{text}.substr(i, piece), body).ok()) << piece;
  return {std::move(a), body};
}

TEST(http_answer, reads_chunks_whatever_the_pieces) {
  const std::string text =
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n"
      "X-A:  b \r\n\r\n5;x=y\r\nhello\r\nA\r\n, my\r\nworl\r\n0\r\nTrailer: t\r\n\r\n";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    const auto [a, body] = read_in(text, piece);
    EXPECT_TRUE(a.done());
    EXPECT_EQ(a.status(), 200);
    EXPECT_EQ(a.header("x-a"), "b");
    EXPECT_EQ(body, "hello, my\r\nworl");
  }
}

TEST(http_answer, reads_sized_and_open_bodies) {
  for (const std::size_t piece : {1U, 7U, 4096U}) {
    const auto [sized, body] =
        read_in("HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nabcdef", piece);
    EXPECT_TRUE(sized.done());
    EXPECT_EQ(body, "abc") << "what follows is not ours";
    auto [open, all] = read_in("HTTP/1.0 200 OK\n\nabc", piece);
    EXPECT_FALSE(open.done());
    EXPECT_TRUE(open.close().ok());
    EXPECT_TRUE(open.done());
    EXPECT_EQ(all, "abc");
    EXPECT_TRUE(read_in("HTTP/1.1 204 No Content\r\n\r\n", piece).first.done());
    EXPECT_TRUE(read_in("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", piece).first.done());
  }
}

TEST(http_answer, refuses_what_is_no_answer) {
  std::string body;
  for (const char* bad :
       {"hello\r\n\r\n", "HTTP/1.1 xx\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n"})
    EXPECT_FALSE(http_answer{}.feed(bad, body).ok()) << bad;
  EXPECT_FALSE(http_answer{}.feed("HTTP/1.1 200 OK\r\nX: " + std::string(70'000, 'x'), body).ok());
  http_answer cut;
  EXPECT_TRUE(cut.feed("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", body).ok());
  EXPECT_FALSE(cut.close().ok());
}

std::string shown(const std::vector<sse_message>& all) {
  std::string out;
  for (const auto& m : all)
    out += "[" + m.event + "|" + m.data + "|" + m.id + "]";
  return out;
}

TEST(sse_reader, reads_events_whatever_the_pieces) {
  const std::string text =
      "\xEF\xBB\xBF: hi\r\n\r\ndata: a\r\ndata:b\r\rid: 7\nevent: x\ndata\n\nretry: 5\nfoo: 1\n"
      "data:  c: d\n\nevent: lost\n\ndata: cut";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    sse_reader r;
    std::vector<sse_message> all;
    for (std::size_t i = 0; i < text.size(); i += piece) {
      const auto some = r.feed(std::string_view{text}.substr(i, piece));
      ASSERT_TRUE(some.ok());
      all.insert(all.end(), some->begin(), some->end());
    }
    EXPECT_EQ(shown(all), "[|a\nb|][x||7][| c: d|7]") << piece;
  }
}

TEST(parse_url, takes_what_people_write) {
  const auto u = parse_url("http://localhost:8000/");
  ASSERT_TRUE(u.ok());
  EXPECT_EQ(u->host + "|" + u->port + "|" + u->path, "localhost|8000|");
  EXPECT_EQ(parse_url("localhost:8000")->port, "8000");
  EXPECT_EQ(parse_url("https://a.example/x/v1/")->path, "/x/v1");
  EXPECT_EQ(parse_url("https://a.example")->port, "443");
  EXPECT_EQ(parse_url("http://[::1]:9")->host, "::1");
  EXPECT_EQ(parse_url("http://[::1]")->port, "80");
  for (const char* bad : {"", "ftp://x", "http://", "http://x:", "http://x:8o", "http://x:123456",
                          "http://[::1", "http://u@x", "http://x/a b", "http://x/?q"})
    EXPECT_FALSE(parse_url(bad).ok()) << bad;
}

TEST(chat_text, asks_with_what_was_set) {
  chat_settings s;
  s.model = "m";
  s.system = "be kind";
  s.thinking = false;
  s.effort = "max"; // of no use without thinking
  s.seed = 3;
  const auto j = json::parse(chat_body(s, {{"user", "hi \xff"}}));
  EXPECT_EQ(j["messages"][0], json({{"role", "system"}, {"content", "be kind"}}));
  EXPECT_EQ(j["messages"][1]["content"], "hi \xEF\xBF\xBD");
  EXPECT_EQ(j["thinking"]["type"], "disabled");
  EXPECT_TRUE(j["stream"].get<bool>());
  EXPECT_EQ(j["seed"], 3);
  EXPECT_FALSE(j.contains("reasoning_effort"));
  EXPECT_FALSE(j.contains("temperature"));
}

TEST(chat_text, says_errors_of_any_shape) {
  EXPECT_EQ(error_words(400, R"({"error":{"message":"no","type":"t"}})"), "HTTP 400: no");
  EXPECT_EQ(error_words(401, R"({"type":"error","error":{"type":"t","message":"who"}})"),
            "HTTP 401: who");
  EXPECT_EQ(error_words(502, "<html>\033[2J"), "HTTP 502: <html>[2J");
  EXPECT_FALSE(first_model("{}").ok());
  EXPECT_FALSE(first_model(R"({"data":[{}]})").ok());
  EXPECT_EQ(*first_model(R"({"data":[{"id":"a"},{"id":"b"}]})"), "a");
}

TEST(chat_text, lets_no_answer_steer_the_terminal) {
  EXPECT_EQ(plain_text("a\033]0;x\007b\r\n\tc\x7F\xC2\x9B"
                       "2J\xC3\xBC"),
            "a]0;xb\n\tc2J\xC3\xBC");
}

std::string chunk(const json& delta, const char* reason = nullptr) {
  json c{{"delta", delta}, {"index", 0}, {"finish_reason", nullptr}};
  if (reason != nullptr)
    c["finish_reason"] = reason;
  return json{{"choices", json::array({c})}}.dump();
}

const std::string usage =
    R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}})";

std::string view_of(bool colours, bool reasoning, const std::vector<std::string>& datas,
                    std::string* answer = nullptr) {
  chat_view v{colours, reasoning};
  std::string out;
  for (const auto& d : datas) {
    const auto text = v.take({"", d, ""});
    EXPECT_TRUE(text.ok()) << d;
    out += text.value_or("");
  }
  out += v.finish();
  if (answer != nullptr)
    *answer = v.answer();
  return out;
}

TEST(chat_view, dims_reasoning_and_parts_it_from_the_answer) {
  const std::vector<std::string> all{chunk({{"role", "assistant"}, {"content", ""}}),
                                     chunk({{"reasoning_content", "hm"}}),
                                     chunk({{"reasoning_content", "m"}}),
                                     chunk({{"content", "Yes"}}),
                                     chunk({{"content", "!"}}, "stop"),
                                     usage,
                                     "[DONE]"};
  std::string answer;
  EXPECT_EQ(view_of(true, true, all, &answer), "\033[2mhmm\033[0m\nYes!\n");
  EXPECT_EQ(answer, "Yes!") << "reasoning is not sent back";
  EXPECT_EQ(view_of(false, true, all), "[thinking]\nhmm\n[/thinking]\nYes!\n");
  EXPECT_EQ(view_of(false, false, all), "Yes!\n");
  EXPECT_EQ(view_of(true, true, {all[1]}), "\033[2mhm\033[0m\n") << "cut off: colours end";
  EXPECT_EQ(view_of(true, true, {}), "");
}

TEST(chat_view, shows_calls_of_tools) {
  const auto call = [](const json& function) {
    return chunk({{"tool_calls", json::array({{{"index", 0}, {"function", function}}})}});
  };
  EXPECT_EQ(view_of(false, true,
                    {call({{"name", "f"}, {"arguments", ""}}), call({{"arguments", "{\"a\""}}),
                     call({{"arguments", ":1}"}})}),
            "f {\"a\":1}\n");
}

TEST(chat_view, keeps_counts_and_takes_errors_for_errors) {
  chat_view v{false, true};
  EXPECT_TRUE(v.take({"", usage, ""}).ok());
  EXPECT_EQ(v.prompt_tokens() * 100 + v.output_tokens() * 10 + v.cached_tokens(), 574U);
  EXPECT_FALSE(v.take({"", "{\"choices\":", ""}).ok());
  const auto refused = v.take({"", R"({"error":{"message":"rank lost"}})", ""});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().what, "rank lost");
  for (const char* odd :
       {"{}", R"({"choices":1})", R"({"choices":[1]})", R"({"choices":[{"delta":3}]})",
        R"({"choices":[{"delta":{"content":5,"tool_calls":[1]}}]})",
        R"({"usage":null,"choices":[{}]})"})
    EXPECT_TRUE(v.take({"", odd, ""}).ok()) << odd;
}

} // namespace
} // namespace di::launch
