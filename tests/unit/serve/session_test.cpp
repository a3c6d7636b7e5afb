// SPDX-License-Identifier: Apache-2.0
// One generation between a client and a desk that the test plays.
#include "tests/support/serve_world.hpp"

namespace di::serve {
namespace {

using di::test::body_of;
using di::test::chat_body;
using di::test::content_of;
using di::test::events_of;
using di::test::released;
using di::test::said;
using di::test::serve_world;
using di::test::test_settings;
using engine::json;
using proto::finish_reason;

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

TEST(session, is_gone_when_its_answer_is_out) {
  serve_world w;
  std::vector<std::weak_ptr<actors::stream_listener>> ears;
  for (const bool stream : {false, true}) {
    const auto c = w.post("/v1/chat/completions", chat_body(stream));
    auto& o = w.desk->orders.back();
    o.ear->tokens(released(said("Hello"), 0, finish_reason::stop));
    c->run();
    ears.push_back(o.ear);
  }
  const auto gone = w.post("/v1/chat/completions", chat_body(true));
  ears.push_back(w.desk->orders.back().ear);
  gone->leave();
  w.desk->orders.clear();
  for (const auto& ear : ears)
    EXPECT_TRUE(ear.expired());
}

TEST(session, looks_at_no_service_that_is_gone) {
  auto w = std::make_unique<serve_world>();
  const auto c = w->post("/v1/chat/completions", chat_body(true));
  const auto desk = w->desk;
  const std::weak_ptr<actors::stream_listener> ear = desk->orders.at(0).ear;
  w.reset();
  desk->orders[0].ear->tokens(released(said("late")));
  c->run();
  EXPECT_FALSE(c->stream_status);
  desk->orders.clear();
  EXPECT_TRUE(ear.expired());
}

TEST(session, tells_a_connection_that_another_took_over) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true), {{"Idempotency-Key", "k"}});
  w.desk->orders.at(0).ear->ended({finish_reason::error, -1, 0, ec::moved, "taken over"}, 0);
  c->run();
  EXPECT_EQ(c->whole->status, 409);
  EXPECT_TRUE(w.desk->cancelled.empty()) << "it goes on for the other one";
}

TEST(session, says_when_the_journal_is_away) {
  serve_world w;
  w.desk->away = true;
  const event_id id{{engine::api::chat, request_id{5}, 1}, {1}, 0};
  const auto c = w.post("/v1/chat/completions", chat_body(true), {{"Last-Event-ID", id.text()}});
  EXPECT_EQ(c->whole->status, 503);
  EXPECT_FALSE(c->whole->headers.get("retry-after").empty());
}

TEST(session, gives_the_same_bytes_however_tokens_come) {
  serve_world w;
  auto body = chat_body(true);
  body["seed"] = 5;
  body["tools"] = json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  const auto ids =
      said("So.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
           "name=\"a\" string=\"true\">wörld</｜DSML｜ parameter>\n</｜DSML｜ "
           "invoke>\n</｜DSML｜ calls>");
  std::string want;
  for (const std::size_t group : {1U, 2U, 3U, 7U, 1'000U}) {
    w.clock.drawn = 1;
    w.desk->orders.clear();
    const auto c = w.post("/v1/chat/completions", body);
    ASSERT_EQ(w.desk->orders.size(), 1U) << c->whole->body;
    auto& o = w.desk->orders[0];
    for (std::size_t i = 0; i < ids.size(); i += group) {
      const auto end = std::min(ids.size(), i + group);
      std::vector<token_id> part(ids.begin() + static_cast<std::ptrdiff_t>(i),
                                 ids.begin() + static_cast<std::ptrdiff_t>(end));
      o.ear->tokens(released(std::move(part), 0,
                             end == ids.size() ? finish_reason::stop : finish_reason::none));
      c->run();
    }
    ASSERT_TRUE(c->ended);
    const auto at = c->stream.find("\"created\":");
    ASSERT_NE(at, std::string::npos);
    std::string got;
    for (const auto& e : events_of(c->stream)) {
      auto j = json::parse(e.data, nullptr, false);
      if (j.is_object())
        j.erase("created");
      got += e.id + " " + (j.is_object() ? j.dump() : e.data) + "\n";
    }
    if (want.empty())
      want = got;
    EXPECT_EQ(got, want) << group << " tokens at a time";
  }
  EXPECT_NE(want.find("tool_calls"), std::string::npos);
}

TEST(session, ends_a_messages_stream_that_fails_with_an_error_event) {
  serve_world w;
  const auto c = w.post("/v1/messages",
                        json{{"model", "demo"},
                             {"max_tokens", 20},
                             {"stream", true},
                             {"messages", json::array({{{"role", "user"}, {"content", "Hi"}}})}});
  auto& o = w.desk->orders.at(0);
  o.ear->tokens(released(serve_world::ids("Hel")));
  o.ear->ended({finish_reason::error, -1, 0, ec::deadline_exceeded, "too late"}, 0);
  c->run();
  const auto events = events_of(c->stream);
  EXPECT_EQ(events.front().event, "message_start");
  EXPECT_EQ(events.back().event, "error");
  EXPECT_EQ(json::parse(events.back().data)["type"], "error");
}

TEST(session, stops_with_an_error_when_its_gateway_does) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body());
  auto& o = w.desk->orders.at(0);
  o.ear->ended({finish_reason::error, -1, 0, ec::unavailable, "this gateway stops"}, 0);
  c->run();
  EXPECT_EQ(c->whole->status, 503);
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

TEST(session, leaves_what_it_attached_to_after_its_client_left) {
  serve_world w;
  const auto c = w.post("/v1/chat/completions", chat_body(true), {{"Idempotency-Key", "k"}});
  const auto o = w.desk->orders.at(0);
  o.ear->tokens(released(serve_world::ids("Hello ")));
  c->run();
  const auto seen = events_of(c->stream);
  c->leave();
  w.desk->record(o, {serve_world::ids("Hello ")}, false);
  w.desk->slow_attach = true;
  const auto r =
      w.post("/v1/chat/completions", chat_body(true), {{"Last-Event-ID", seen.back().id}});
  ASSERT_TRUE(w.desk->attached.contains(o.id.v));
  r->leave();
  w.desk->left.clear(); // said before the request was followed: the desk knew of nobody to leave
  w.desk->answer_attach();
  r->run();
  EXPECT_EQ(w.desk->left, std::vector{o.id});
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

} // namespace
} // namespace di::serve
