// SPDX-License-Identifier: Apache-2.0
// Responses that go on with a stored one: what of it is read beside the threads of HTTP.
#include "launch/serve/generations.hpp"
#include "launch/serve/routes_responses.hpp"
#include "tests/support/serve_world.hpp"

#include <future>

namespace di::serve {
namespace {

using di::test::body_of;
using di::test::fake_client;
using di::test::said;
using di::test::serve_world;
using di::test::test_settings;
using engine::json;

struct stored_world : serve_world {
  stored_world() : serve_world{roomy()} { add_responses_routes(routes, home); }

  static serve_settings roomy() {
    auto s = test_settings();
    s.model.context_tokens = 1'000'000;
    return s;
  }
  static json asking(const std::string& text) {
    return {{"model", "demo"}, {"input", text}, {"reasoning", {{"effort", "none"}}}};
  }
  /// Stores a response to a text. @return its id
  std::string stored(const std::string& text, const std::string& answer) {
    const auto c = post("/v1/responses", asking(text));
    c->run_until([&] { return desk->orders.size() == 1; });
    desk->record(desk->orders.at(0), {said(answer)}, true);
    c->leave();
    const auto secret = json::parse(desk->orders[0].what.note)["secret"].get<std::uint64_t>();
    return public_id{engine::api::responses, desk->orders[0].id, secret}.text();
  }
  /// Keeps what is worked on aside waiting, behind work of so many bytes.
  void block(std::size_t bytes = 1) {
    std::promise<void> idle; // what came before takes no bytes any more once this runs
    ASSERT_TRUE(home.aside(0, [&] { idle.set_value(); }));
    idle.get_future().wait();
    ASSERT_TRUE(home.aside(bytes, [gone = go.get_future().share()] { gone.wait(); }));
  }
  std::promise<void> go;
};

TEST(responses, with_long_histories_are_prepared_beside_the_threads_of_http) {
  const auto small = std::string{"Hi"}, large = "Hi" + std::string(70'000, ' ');
  std::string many;
  while (serve_world::ids(many).size() * sizeof(token_id) < aside_bytes)
    many += many.empty() ? "Hello there. " : many;
  for (const auto& [text, answer] : {std::pair{large, small}, std::pair{small, many}}) {
    stored_world w;
    auto body = w.asking("And?");
    body["previous_response_id"] = w.stored(text, answer);
    w.block();
    const auto c = w.post("/v1/responses", body);
    EXPECT_EQ(w.desk->orders.size(), 1U) << "a short body with a long history was prepared here";
    w.go.set_value();
    c->run_until([&] { return w.desk->orders.size() == 2; });
    ASSERT_EQ(w.desk->orders.size(), 2U);
    const auto items = json::parse(w.desk->orders[1].what.note)["extra"]["items"];
    ASSERT_EQ(items.size(), 3U) << "input, output, input";
    EXPECT_EQ(items[0]["content"][0]["text"], text);
    EXPECT_EQ(items[1]["content"][0]["text"], answer);
    EXPECT_EQ(items[2]["content"][0]["text"], "And?");
  }
}

TEST(responses, with_short_histories_are_prepared_at_once) {
  stored_world w;
  auto body = w.asking("And?");
  body["previous_response_id"] = w.stored("Hi", "Hello");
  w.block();
  const auto c = w.post("/v1/responses", body);
  EXPECT_EQ(w.desk->orders.size(), 2U);
  w.go.set_value();
}

TEST(responses, that_are_large_are_shown_beside_the_threads_of_http) {
  stored_world w;
  const auto id = w.stored("Hi" + std::string(70'000, ' '), "Hello");
  w.block();
  const auto c = w.send("GET", "/v1/responses/" + id);
  EXPECT_FALSE(c->whole);
  w.go.set_value();
  c->run_until([&] { return c->whole.has_value(); });
  EXPECT_EQ(body_of(*c)["output"][0]["content"][0]["text"], "Hello");
}

TEST(responses, whose_history_finds_no_room_aside_are_refused_for_now) {
  stored_world w;
  auto body = w.asking("And?");
  body["previous_response_id"] = w.stored("Hi" + std::string(70'000, ' '), "Hello");
  w.block(side_worker::bytes_max);
  const auto c = w.post("/v1/responses", body);
  w.go.set_value();
  ASSERT_TRUE(c->whole);
  EXPECT_EQ(c->whole->status, 503);
  EXPECT_FALSE(c->whole->headers.get("retry-after").empty());
  EXPECT_EQ(w.home.doors().open(), 0U) << "its place is free";
}

} // namespace
} // namespace di::serve
