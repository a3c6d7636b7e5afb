// SPDX-License-Identifier: Apache-2.0
// What routes make of a body before it becomes an order: prompts, limits, keys, hooks.
#include "tests/support/serve_world.hpp"

#include <chrono>
#include <thread>

namespace di::serve {
namespace {

using di::test::body_of;
using di::test::chat_body;
using di::test::released;
using di::test::said;
using di::test::serve_world;
using di::test::test_settings;
using engine::json;
using proto::finish_reason;

TEST(session, speaks_messages_with_the_claude_names) {
  serve_world w;
  json body{{"model", "claude-opus-4"},
            {"max_tokens", 20},
            {"thinking", {{"type", "disabled"}}},
            {"messages", json::array({{{"role", "user"}, {"content", "Hi"}}})}};
  const auto c = w.post("/v1/messages", body);
  ASSERT_EQ(w.desk->orders.size(), 1U) << c->whole->body;
  w.desk->orders[0].ear->tokens(released(said("Hello"), 0, finish_reason::stop));
  c->run();
  const auto j = body_of(*c);
  EXPECT_EQ(j["type"], "message");
  EXPECT_EQ(j["content"][0]["text"], "Hello");
  EXPECT_EQ(j["stop_reason"], "end_turn");
  body["model"] = "gpt-4";
  const auto no = w.post("/v1/messages", body);
  EXPECT_EQ(no->whole->status, 404);
  EXPECT_EQ(body_of(*no)["error"]["type"], "not_found_error");
}

TEST(completions, take_several_prompts_with_several_choices) {
  serve_world w;
  const auto c = w.post("/v1/completions", json{{"model", "demo"},
                                                {"prompt", {"one", "two"}},
                                                {"n", 2},
                                                {"echo", true},
                                                {"max_tokens", 5}});
  ASSERT_EQ(w.desk->orders.size(), 2U) << c->whole->body;
  for (std::size_t p = 0; p < 2; ++p)
    for (std::uint32_t i = 0; i < 2; ++i)
      w.desk->orders[p].ear->tokens(released(said(p == 0 ? " a" : " b"), i, finish_reason::stop));
  c->run();
  const auto j = body_of(*c);
  ASSERT_EQ(j["choices"].size(), 4U);
  EXPECT_EQ(j["choices"][1]["text"], "one a");
  EXPECT_EQ(j["choices"][2]["text"], "two b");
  EXPECT_EQ(j["choices"][3]["index"], 3);
  EXPECT_EQ(j["usage"]["prompt_tokens"],
            w.desk->orders[0].what.spec.prompt.size() + w.desk->orders[1].what.spec.prompt.size());
}

TEST(completions, show_the_likeliest_of_best_of) {
  serve_world w;
  const auto c =
      w.post("/v1/completions",
             json{{"model", "demo"}, {"prompt", "x"}, {"best_of", 3}, {"max_tokens", 5}});
  ASSERT_EQ(w.desk->orders.size(), 1U) << c->whole->body;
  EXPECT_EQ(w.desk->orders[0].what.spec.sampling.n, 3U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    auto m = released(said(i == 1 ? "good" : "bad"), i, finish_reason::stop);
    m.logprobs.resize(m.tokens.size());
    for (auto& p : m.logprobs)
      p.logprob = i == 1 ? -0.1 : -2.0;
    w.desk->orders[0].ear->tokens(m);
  }
  c->run();
  const auto j = body_of(*c);
  ASSERT_EQ(j["choices"].size(), 1U);
  EXPECT_EQ(j["choices"][0]["text"], "good");
  EXPECT_EQ(j["choices"][0]["index"], 0);
  EXPECT_TRUE(j["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(w.post("/v1/completions",
                   json{{"model", "demo"}, {"prompt", "x"}, {"best_of", 2}, {"stream", true}})
                ->whole->status,
            400);
}

TEST(limits, refuse_before_anything_is_submitted) {
  serve_world w;
  const auto refused = [&](const char* field, const json& value, const char* code) {
    auto body = chat_body();
    body[field] = value;
    const auto c = w.post("/v1/chat/completions", body);
    if (body.dump().size() >= 60'000)
      c->run_later();
    ASSERT_TRUE(c->whole) << field;
    EXPECT_EQ(c->whole->status, 400) << field;
    EXPECT_EQ(body_of(*c)["error"]["code"], code) << field;
    EXPECT_LT(c->whole->body.size(), 4'000U);
  };
  refused("n", 1'000'000, "invalid_request_error");
  refused("max_tokens", 1'000'000'000, "invalid_request_error");
  refused("stop", json(std::vector<std::string>(100'000, "x")), "invalid_request_error");
  refused("max_tokens", 4'092, "context_length_exceeded");
  const auto deep = w.send("POST", "/v1/chat/completions", std::string(100'000, '['));
  deep->run_later();
  EXPECT_EQ(deep->whole->status, 400);
  EXPECT_EQ(w.send("POST", "/v1/chat/completions", "{\"model\":\"demo\",x}")->whole->status, 400);
  EXPECT_TRUE(w.desk->orders.empty());
  // The side thread gives the place of the deep one back after its answer.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{10};
  while (w.home.doors().open() > 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_EQ(w.home.doors().open(), 0U);
}

TEST(limits, of_a_key_hold_for_its_requests) {
  const auto file = testing::TempDir() + "di_session_keys.yaml";
  std::ofstream{file} << "keys:\n  - {key: sk-alice-1, tenant: alice, requests: 1, choices: 2, "
                         "priority: 1}\n";
  auto settings = test_settings();
  settings.keys_file = file;
  serve_world w{settings};
  ASSERT_TRUE(w.home.load_keys().ok());
  const http::header_list key{{"Authorization", "Bearer sk-alice-1"}};
  auto body = chat_body();
  body["n"] = 3;
  EXPECT_EQ(w.post("/v1/chat/completions", body, key)->whole->status, 400);
  body["n"] = 2;
  body["priority"] = 9;
  const auto first = w.post("/v1/chat/completions", body, key);
  ASSERT_EQ(w.desk->orders.size(), 1U);
  EXPECT_EQ(w.desk->orders[0].what.spec.tenant, "alice");
  EXPECT_EQ(w.desk->orders[0].what.spec.priority, 1);
  EXPECT_TRUE(w.desk->orders[0].what.spec.prefix_salt.starts_with("alice"));
  const auto second = w.post("/v1/chat/completions", body, key);
  EXPECT_EQ(second->whole->status, 429);
  EXPECT_FALSE(second->whole->headers.get("retry-after").empty());
  first->leave();
  EXPECT_FALSE(w.post("/v1/chat/completions", body, key)->whole);
  std::remove(file.c_str());
}

TEST(limits, of_a_key_count_those_who_left_and_may_return) {
  const auto file = testing::TempDir() + "di_parked_keys.yaml";
  std::ofstream{file} << "keys:\n  - {key: sk-alice-1, tenant: alice, requests: 1}\n";
  auto settings = test_settings();
  settings.keys_file = file;
  serve_world w{settings};
  ASSERT_TRUE(w.home.load_keys().ok());
  const auto with = [](std::string name, std::string value) {
    return http::header_list{{"Authorization", "Bearer sk-alice-1"}, {std::move(name), value}};
  };
  const auto first = w.post("/v1/chat/completions", chat_body(true), with("Idempotency-Key", "a"));
  first->leave();
  EXPECT_EQ(w.home.parked().size(), 1U);
  const auto other = w.post("/v1/chat/completions", chat_body(), with("Idempotency-Key", "b"));
  ASSERT_TRUE(other->whole);
  EXPECT_EQ(other->whole->status, 429) << "the first one still computes";
  const auto again = w.post("/v1/chat/completions", chat_body(true), with("Idempotency-Key", "a"));
  EXPECT_FALSE(again->whole) << "it comes back to its own request";
  again->leave();
  w.desk->record(w.desk->orders[1], {said("Hello")}, true);
  const auto secret = json::parse(w.desk->orders[1].what.note)["secret"].get<std::uint64_t>();
  const event_id seen{{engine::api::chat, w.desk->orders[1].id, secret}, {1}, 0};
  const auto resumed =
      w.post("/v1/chat/completions", chat_body(true), with("Last-Event-ID", seen.text()));
  EXPECT_TRUE(resumed->ended) << "by the id of an event, too";
  EXPECT_EQ(w.home.doors().open(), 0U);
  w.post("/v1/chat/completions", chat_body(true), with("Idempotency-Key", "c"))->leave();
  w.clock.time.ns += 61'000'000'000;
  EXPECT_FALSE(w.post("/v1/chat/completions", chat_body(), with("Idempotency-Key", "d"))->whole)
      << "the window is over";
  std::remove(file.c_str());
}

TEST(large_bodies, are_read_beside_the_threads_of_http) {
  serve_world w;
  auto body = chat_body();
  body["messages"][0]["content"] = std::string(200'000, 'a');
  const auto c = w.post("/v1/chat/completions", body);
  c->run_later();
  ASSERT_TRUE(c->whole);
  EXPECT_EQ(body_of(*c)["error"]["code"], "context_length_exceeded");
  body["messages"][0]["content"] = "Hi" + std::string(100'000, ' ');
  const auto counted = w.post("/tokenize", json{{"prompt", body["messages"][0]["content"]}});
  counted->run_later();
  EXPECT_EQ(counted->whole->status, 200);
}

TEST(limits, of_time_come_from_header_and_settings) {
  serve_world w;
  static_cast<void>(w.post("/v1/chat/completions", chat_body(), {{"x-di-deadline-ms", "250"}}));
  EXPECT_EQ(w.desk->orders.at(0).what.spec.deadline_ms, 250U);
  static_cast<void>(
      w.post("/v1/chat/completions", chat_body(), {{"x-di-deadline-ms", "99999999999"}}));
  EXPECT_EQ(w.desk->orders.at(1).what.spec.deadline_ms, 1'800'000U);
  EXPECT_EQ(
      w.post("/v1/chat/completions", chat_body(), {{"x-di-deadline-ms", "soon"}})->whole->status,
      400);
}

TEST(test_hooks, are_a_400_unless_the_gateway_has_them) {
  serve_world with;
  auto body = chat_body();
  body["di_forced_text"] = "Hi</think>";
  ASSERT_FALSE(with.post("/v1/chat/completions", body)->whole);
  const auto& forced = with.desk->orders.at(0).what.spec.sampling.forced_ids;
  EXPECT_EQ(forced, said("Hi</think>"));
  auto settings = test_settings();
  settings.test_hooks = false;
  serve_world without{settings};
  const auto c = without.post("/v1/chat/completions", body);
  EXPECT_EQ(c->whole->status, 400);
  EXPECT_EQ(body_of(*c)["error"]["param"], "di_forced_text");
}

TEST(seed, is_kept_when_given_and_drawn_else) {
  serve_world w;
  auto body = chat_body();
  body["seed"] = 7;
  static_cast<void>(w.post("/v1/chat/completions", body));
  static_cast<void>(w.post("/v1/chat/completions", chat_body()));
  EXPECT_EQ(w.desk->orders.at(0).what.spec.sampling.seed, 7U);
  EXPECT_NE(w.desk->orders.at(1).what.spec.sampling.seed, 0U);
}

} // namespace
} // namespace di::serve
