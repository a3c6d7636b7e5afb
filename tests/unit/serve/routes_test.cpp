// SPDX-License-Identifier: Apache-2.0
// What routes answer without a generation: paths, methods, keys, health, models, tokenizer.
#include "tests/support/serve_world.hpp"

namespace di::serve {
namespace {

using di::test::body_of;
using di::test::serve_world;
using di::test::test_settings;
using engine::json;

TEST(router, answers_an_unknown_path_as_json_in_the_dialect_of_the_path) {
  serve_world w;
  const auto a = w.send("GET", "/nope");
  EXPECT_EQ(a->whole->status, 404);
  EXPECT_EQ(body_of(*a)["error"]["type"], "invalid_request_error");
  const auto b = w.send("POST", "/v1/messages/other", "{}");
  EXPECT_EQ(b->whole->status, 404);
  EXPECT_EQ(body_of(*b)["type"], "error");
  EXPECT_EQ(body_of(*b)["error"]["type"], "not_found_error");
  for (const auto* path : {"/v1/embeddings", "/rerank", "/v1/audio/speech"})
    EXPECT_EQ(w.send("POST", path, "{}")->whole->status, 404);
}

TEST(router, names_the_methods_that_a_path_has) {
  serve_world w;
  const auto a = w.send("GET", "/v1/chat/completions");
  EXPECT_EQ(a->whole->status, 405);
  EXPECT_EQ(a->whole->headers.get("allow"), "POST");
  EXPECT_EQ(body_of(*a)["error"]["code"], "method_not_allowed");
}

TEST(router, answers_head_where_get_is_and_options_everywhere) {
  serve_world w;
  EXPECT_EQ(w.send("HEAD", "/v1/models")->whole->status, 200);
  const auto a = w.send("OPTIONS", "/v1/messages", {}, {{"Origin", "http://a"}});
  EXPECT_EQ(a->whole->status, 204);
  EXPECT_EQ(a->whole->headers.get("access-control-allow-origin"), "*");
  const auto b = w.send("GET", "/v1/models", {}, {{"Origin", "http://a"}});
  EXPECT_EQ(b->whole->headers.get("access-control-allow-origin"), "*");
}

TEST(router, keeps_a_usable_request_id_and_draws_one_else) {
  serve_world w;
  const auto kept = w.send("GET", "/ping", {}, {{"X-Request-Id", "abc-1"}});
  EXPECT_EQ(kept->whole->headers.get("x-request-id"), "abc-1");
  const auto drawn = w.send("GET", "/ping", {}, {{"X-Request-Id", "a\x01b"}});
  EXPECT_TRUE(drawn->whole->headers.get("x-request-id").starts_with("req_"));
  const auto anthropic = w.send("POST", "/v1/messages", "{", {});
  EXPECT_FALSE(anthropic->whole->headers.get("request-id").empty());
  EXPECT_FALSE(anthropic->whole->headers.get("openai-processing-ms").empty());
}

TEST(router, asks_for_a_key_only_where_it_must) {
  const auto file = testing::TempDir() + "di_routes_keys.yaml";
  std::ofstream{file} << "keys:\n  - {key: sk-alice-1, tenant: alice}\n";
  auto settings = test_settings();
  settings.keys_file = file;
  serve_world w{settings};
  ASSERT_TRUE(w.home.load_keys().ok());
  EXPECT_EQ(w.send("GET", "/readyz")->whole->status, 200);
  const auto none = w.send("GET", "/v1/models");
  EXPECT_EQ(none->whole->status, 401);
  EXPECT_EQ(body_of(*none)["error"]["code"], "missing_api_key");
  const auto wrong = w.send("GET", "/v1/models", {}, {{"Authorization", "Bearer sk-bob"}});
  EXPECT_EQ(body_of(*wrong)["error"]["code"], "invalid_api_key");
  EXPECT_EQ(wrong->whole->headers.get("www-authenticate"), "Bearer");
  EXPECT_EQ(w.send("GET", "/v1/models", {}, {{"x-api-key", "sk-alice-1"}})->whole->status, 200);
  std::remove(file.c_str());
}

TEST(router, refuses_before_the_body_what_cannot_be_served) {
  serve_world w;
  http::request head;
  head.method = "POST";
  head.path = "/v1/nothing";
  ASSERT_TRUE(w.routes.check_head(head).has_value());
  EXPECT_EQ(w.routes.check_head(head)->status, 404);
  head.path = "/v1/completions";
  EXPECT_FALSE(w.routes.check_head(head).has_value());
  head.headers.add("content-encoding", "gzip");
  ASSERT_TRUE(w.routes.check_head(head).has_value());
  EXPECT_EQ(w.routes.check_head(head)->status, 415);
}

TEST(router, says_what_the_server_refuses_as_json) {
  serve_world w;
  http::request asked;
  asked.path = "/v1/messages";
  const auto a = w.routes.format({413, "body_too_large", "64 MiB", &asked});
  EXPECT_EQ(a.status, 413);
  EXPECT_EQ(json::parse(a.body)["error"]["type"], "request_too_large");
  EXPECT_FALSE(a.headers.has("access-control-allow-origin"));
  asked.headers.add("origin", "http://a");
  const auto full = w.routes.format({503, "bodies_too_large", "too much", &asked});
  EXPECT_EQ(full.headers.get("retry-after"), "1");
  EXPECT_EQ(full.headers.get("access-control-allow-origin"), "*");
}

TEST(health, tells_life_from_readiness) {
  serve_world w;
  EXPECT_EQ(w.send("GET", "/readyz")->whole->status, 200);
  w.health->state.ready = false;
  w.health->state.draining = true;
  w.health->state.why = "draining";
  EXPECT_EQ(w.send("GET", "/livez")->whole->status, 200);
  for (const auto* path : {"/health", "/ready", "/readyz"}) {
    const auto a = w.send("GET", path);
    EXPECT_EQ(a->whole->status, 503);
    EXPECT_EQ(body_of(*a)["why"], "draining");
  }
  w.health->state.started = false;
  w.health->state.progress = 0.25;
  const auto start = w.send("GET", "/startupz");
  EXPECT_EQ(start->whole->status, 503);
  EXPECT_EQ(body_of(*start)["progress"], 0.25);
  EXPECT_EQ(w.send("GET", "/health_generate")->whole->status, 503);
  EXPECT_EQ(body_of(*w.send("GET", "/version"))["version"], "di test");
  EXPECT_EQ(body_of(*w.send("GET", "/get_server_info"))["context_length"], 4'096);
  EXPECT_EQ(body_of(*w.send("GET", "/server_info"))["status"], "unavailable");
  EXPECT_EQ(body_of(*w.send("GET", "/get_model_info"))["model_path"], "demo");
  EXPECT_EQ(body_of(*w.send("GET", "/loads"))["server_load"], 0);
}

TEST(models, are_listed_with_their_aliases_and_found_one_by_one) {
  serve_world w;
  const auto list = body_of(*w.send("GET", "/v1/models"));
  ASSERT_EQ(list["data"].size(), 2U);
  EXPECT_EQ(list["data"][0]["id"], "demo");
  EXPECT_EQ(list["data"][0]["max_model_len"], 4'096);
  EXPECT_EQ(list["data"][0]["created_at"], "2023-11-14T22:13:20Z");
  EXPECT_EQ(body_of(*w.send("GET", "/v1/models/small"))["id"], "small");
  const auto none = w.send("GET", "/v1/models/gpt-4");
  EXPECT_EQ(none->whole->status, 404);
  EXPECT_EQ(body_of(*none)["error"]["code"], "model_not_found");
}

TEST(tokenize, gives_back_what_detokenize_was_given) {
  serve_world w;
  const auto text = std::string{"Hello, wörld <think>"};
  const auto plain =
      body_of(*w.post("/tokenize", json{{"prompt", text}, {"add_special_tokens", false}}));
  EXPECT_EQ(plain["count"], plain["tokens"].size());
  const auto back = body_of(*w.post("/v1/detokenize", json{{"tokens", plain["tokens"]}}));
  EXPECT_EQ(back["prompt"], text);
  const auto whole = body_of(*w.post("/v1/tokenize", json{{"prompt", text}}));
  EXPECT_EQ(whole["tokens"][0], 0) << "the completion that it stands for begins a sentence";
  const auto chat = body_of(*w.post(
      "/tokenize", json{{"messages", json::array({{{"role", "user"}, {"content", "Hi"}}})}}));
  EXPECT_GT(chat["count"], 3);
  EXPECT_EQ(w.post("/detokenize", json{{"tokens", {1, 99'999}}})->whole->status, 400);
}

TEST(count_tokens, needs_no_max_tokens) {
  serve_world w;
  const auto a = w.post("/v1/messages/count_tokens",
                        json{{"model", "claude-sonnet-4-5"},
                             {"messages", json::array({{{"role", "user"}, {"content", "Hi"}}})}});
  EXPECT_EQ(a->whole->status, 200) << a->whole->body;
  EXPECT_GT(body_of(*a)["input_tokens"], 3);
}

} // namespace
} // namespace di::serve
