// SPDX-License-Identifier: Apache-2.0
// One generation between a client and a desk that the test plays.
#include "tests/support/serve_world.hpp"

namespace di::serve {
namespace {

using di::test::body_of;
using di::test::content_of;
using di::test::events_of;
using di::test::released;
using di::test::serve_world;
using di::test::test_settings;
using engine::json;
using proto::finish_reason;

json chat_body(bool stream = false) {
  return json{{"model", "demo"},
              {"messages", json::array({{{"role", "user"}, {"content", "Hi"}}})},
              {"thinking", {{"type", "disabled"}}},
              {"max_tokens", 50},
              {"stream", stream}};
}

/// The text and the end token, as a rank would send them.
std::vector<token_id> said(std::string_view text) {
  auto ids = serve_world::ids(text);
  ids.push_back(1);
  return ids;
}

TEST(session, answers_a_chat_with_one_body) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body());
  ASSERT_EQ(w.desk->orders.size(), 1U) << c->whole->body;
  EXPECT_FALSE(c->whole);
  const auto& o = w.desk->orders[0];
  EXPECT_EQ(o.what.spec.sampling.max_tokens, 50U);
  EXPECT_EQ(o.what.spec.deadline_ms, 1'800'000U);
  const auto ids = said("Hello there!");
  o.ear->opened();
  o.ear->tokens(released(ids, 0, finish_reason::stop));
  c->run();
  ASSERT_TRUE(c->whole);
  EXPECT_EQ(c->whole->status, 200);
  const auto j = body_of(*c);
  EXPECT_EQ(j["choices"][0]["message"]["content"], "Hello there!");
  EXPECT_EQ(j["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(j["usage"]["completion_tokens"], ids.size());
  EXPECT_EQ(j["usage"]["prompt_tokens"], o.what.spec.prompt.size());
  EXPECT_EQ(j["seed"], o.what.spec.sampling.seed);
  EXPECT_TRUE(j["system_fingerprint"].get<std::string>().starts_with("fp_"));
  EXPECT_TRUE(j["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(w.home.sessions(), 0U);
  EXPECT_EQ(w.home.doors().open(), 0U);
}

TEST(session, streams_what_it_would_have_answered_whole) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true));
  const auto& o = w.desk->orders.at(0);
  EXPECT_FALSE(c->stream_status) << "no header before the first token: a refusal has its status";
  for (const auto id : said("Hello there, wörld!")) {
    o.ear->tokens(released({id}));
    c->run();
  }
  EXPECT_FALSE(c->ended);
  o.ear->tokens(released({}, 0, finish_reason::stop));
  c->run();
  EXPECT_TRUE(c->ended);
  EXPECT_EQ(c->stream_headers.get("content-type"), "text/event-stream");
  const auto events = events_of(c->stream);
  EXPECT_EQ(content_of(events), "Hello there, wörld!");
  EXPECT_EQ(events.back().data, "[DONE]");
  EXPECT_EQ(w.home.sessions(), 0U);
}

TEST(session, numbers_events_without_gaps) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true));
  w.desk->orders.at(0).ear->tokens(released(said("one two three"), 0, finish_reason::stop));
  c->run();
  std::uint64_t next = 1;
  for (const auto& e : events_of(c->stream)) {
    if (e.data == "[DONE]")
      break;
    const auto id = event_id::parse(e.id);
    ASSERT_TRUE(id) << e.id;
    EXPECT_EQ(id->seen.at(0), next++);
  }
}

TEST(session, gives_a_refusal_its_status_and_a_time) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true));
  w.desk->orders.at(0).ear->opened();
  w.desk->orders[0].ear->ended({finish_reason::error, -1, 0, ec::limit_exceeded, "queue is full"},
                               1'500);
  c->run();
  EXPECT_EQ(c->whole->status, 429);
  EXPECT_EQ(c->whole->headers.get("retry-after"), "2");
  EXPECT_EQ(w.home.sessions(), 0U);
}

TEST(session, ends_a_stream_that_fails_with_one_error_event) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true));
  w.desk->orders.at(0).ear->tokens(released(serve_world::ids("Hello")));
  w.desk->orders[0].ear->ended({finish_reason::error, -1, 0, ec::peer_lost, "all ranks left"}, 0);
  c->run();
  const auto events = events_of(c->stream);
  ASSERT_FALSE(events.empty());
  EXPECT_TRUE(json::parse(events.back().data).contains("error"));
  EXPECT_EQ(c->stream.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(c->ended);
}

TEST(session, cancels_when_its_client_leaves) {
  serve_world w;
  for (const bool stream : {false, true}) {
    const auto c = w.post("/v1/chat/completions", chat_body(stream));
    c->leave();
    ASSERT_FALSE(w.desk->cancelled.empty());
    EXPECT_EQ(w.desk->cancelled.back(), w.desk->orders.back().id);
  }
  EXPECT_TRUE(w.desk->left.empty());
  EXPECT_EQ(w.home.sessions(), 0U);
  EXPECT_EQ(w.home.doors().open(), 0U);
}

TEST(session, lets_a_request_with_an_idempotency_key_go_on) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true), {{"Idempotency-Key", "once"}});
  const auto& o = w.desk->orders.at(0);
  EXPECT_FALSE(o.what.dedup.empty());
  EXPECT_EQ(o.what.detached_ms, 60'000U);
  c->leave();
  EXPECT_TRUE(w.desk->cancelled.empty());
  EXPECT_EQ(w.desk->left.size(), 1U);
}

TEST(session, answers_a_known_idempotency_key_from_its_record) {
  serve_world w;
  const auto first = w.post("/v1/chat/completions", chat_body(), {{"Idempotency-Key", "once"}});
  w.desk->orders.at(0).ear->tokens(released(said("the same"), 0, finish_reason::stop));
  first->run();
  w.desk->record(w.desk->orders[0], {said("the same")}, true);
  const auto again = w.post("/v1/chat/completions", chat_body(), {{"Idempotency-Key", "once"}});
  EXPECT_EQ(w.desk->orders.at(0).what.dedup, w.desk->orders.at(1).what.dedup);
  EXPECT_EQ(w.desk->orders[0].what.dedup_digest, w.desk->orders[1].what.dedup_digest);
  w.desk->orders[1].ear->known(w.desk->orders[0].id, true);
  again->run();
  ASSERT_TRUE(again->whole);
  EXPECT_EQ(again->whole->body, first->whole->body);
  const auto other = w.post("/v1/chat/completions", chat_body(), {{"Idempotency-Key", "once"}});
  w.desk->orders[2].ear->known(w.desk->orders[0].id, false);
  other->run();
  EXPECT_EQ(other->whole->status, 422);
}

TEST(session, continues_a_stream_from_any_event) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", [] {
    auto b = chat_body(true);
    b["n"] = 2;
    b["stream_options"] = {{"include_usage", true}};
    return b;
  }());
  const auto o = w.desk->orders.at(0);
  o.ear->tokens(released(serve_world::ids("Hello ")));
  o.ear->tokens(released(said("Bonjour"), 1, finish_reason::stop));
  o.ear->tokens(released(said("world"), 0, finish_reason::stop));
  c->run();
  const auto all = events_of(c->stream);
  auto first = serve_world::ids("Hello ");
  for (const auto id : said("world"))
    first.push_back(id);
  w.desk->record(o, {first, said("Bonjour")}, true);
  for (std::size_t cut = 0; cut + 1 < all.size(); ++cut) {
    const auto r =
        w.post("/v1/chat/completions", chat_body(true), {{"Last-Event-ID", all[cut].id}});
    const auto rest = events_of(r->stream);
    std::multiset<std::string> want, got;
    for (std::size_t i = cut + 1; i < all.size(); ++i)
      want.insert(all[i].data);
    for (const auto& e : rest)
      got.insert(e.data);
    EXPECT_EQ(got, want) << "after event " << cut;
    EXPECT_TRUE(r->ended);
  }
  EXPECT_EQ(w.desk->orders.size(), 1U) << "nothing is computed twice";
}

TEST(session, follows_a_stream_that_goes_on_elsewhere) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true), {{"Idempotency-Key", "k"}});
  const auto o = w.desk->orders.at(0);
  o.ear->tokens(released(serve_world::ids("Hello ")));
  c->run();
  const auto seen = events_of(c->stream);
  c->leave();
  w.desk->record(o, {serve_world::ids("Hello ")}, false);
  const auto r =
      w.post("/v1/chat/completions", chat_body(true), {{"Last-Event-ID", seen.back().id}});
  ASSERT_TRUE(w.desk->attached.contains(o.id.v));
  auto rest = serve_world::ids("Hello ");
  for (const auto id : said("world"))
    rest.push_back(id);
  w.desk->attached[o.id.v]->tokens(released(rest, 0, finish_reason::stop));
  r->run();
  EXPECT_EQ(content_of(seen) + content_of(events_of(r->stream)), "Hello world");
}

TEST(session, knows_nothing_of_another_clients_answer) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true));
  const auto o = w.desk->orders.at(0);
  w.desk->record(o, {said("secret")}, true);
  const event_id guessed{{engine::api::chat, o.id, 42}, {0}, 0};
  const auto r =
      w.post("/v1/chat/completions", chat_body(true), {{"Last-Event-ID", guessed.text()}});
  EXPECT_EQ(r->whole->status, 404);
  const auto bad = w.post("/v1/chat/completions", chat_body(true), {{"Last-Event-ID", "7"}});
  EXPECT_EQ(bad->whole->status, 400);
}

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

TEST(session, sends_a_comment_into_silence) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true));
  w.home.tick();
  c->run();
  EXPECT_FALSE(c->stream_status);
  w.clock.time.ns += 11'000'000'000;
  w.home.tick();
  c->run();
  EXPECT_EQ(c->stream_status, 200);
  EXPECT_EQ(c->stream, ": keep-alive\n\n");
}

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
    ASSERT_TRUE(c->whole) << field;
    EXPECT_EQ(c->whole->status, 400) << field;
    EXPECT_EQ(body_of(*c)["error"]["code"], code) << field;
    EXPECT_LT(c->whole->body.size(), 4'000U);
  };
  refused("n", 1'000'000, "invalid_request_error");
  refused("max_tokens", 1'000'000'000, "invalid_request_error");
  refused("stop", json(std::vector<std::string>(100'000, "x")), "invalid_request_error");
  refused("max_tokens", 4'092, "context_length_exceeded");
  EXPECT_EQ(w.send("POST", "/v1/chat/completions", std::string(100'000, '['))->whole->status, 400);
  EXPECT_EQ(w.send("POST", "/v1/chat/completions", "{\"model\":\"demo\",x}")->whole->status, 400);
  EXPECT_TRUE(w.desk->orders.empty());
  EXPECT_EQ(w.home.doors().open(), 0U);
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
