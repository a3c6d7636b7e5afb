// SPDX-License-Identifier: Apache-2.0
// Who may ask: keys, admission, the words of refusals, ids.
#include "engine/chat/json.hpp"
#include "launch/serve/admission.hpp"
#include "launch/serve/api_error.hpp"
#include "launch/serve/api_keys.hpp"
#include "launch/serve/public_id.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace di::serve {
namespace {

using engine::json;

constexpr std::string_view keys_yaml = R"(keys:
  - {key: sk-alice-1234, tenant: alice, requests: 2, tokens_per_minute: 600}
  - {sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, name: batch, tenant: bob, choices: 4, priority: -2}
)";

instant at_s(std::int64_t s) {
  return {s * 1'000'000'000};
}

TEST(api_keys, finds_the_grant_of_a_key_and_of_a_digest) {
  const auto table = key_table::parse(keys_yaml, "keys.yaml");
  ASSERT_TRUE(table.ok()) << table.error().what;
  const auto* alice = table->find("sk-alice-1234");
  ASSERT_NE(alice, nullptr);
  EXPECT_EQ(alice->tenant, "alice");
  EXPECT_EQ(alice->requests, 2U);
  const auto* bob = table->find("test");
  ASSERT_NE(bob, nullptr);
  EXPECT_EQ(bob->name, "batch");
  EXPECT_EQ(bob->priority, -2);
  EXPECT_EQ(table->find("sk-alice-1235"), nullptr);
  EXPECT_EQ(table->find(""), nullptr);
}

TEST(api_keys, name_the_place_of_each_defect) {
  const auto table =
      key_table::parse("keys:\n  - {key: short}\n  - {tenant: x}\n  - {kee: a}\n", "k");
  ASSERT_FALSE(table.ok());
  EXPECT_NE(table.error().what.find("k:2:"), std::string::npos) << table.error().what;
  EXPECT_NE(table.error().what.find("k:3:"), std::string::npos);
  EXPECT_NE(table.error().what.find("unknown key `kee`"), std::string::npos);
}

TEST(api_keys, let_everybody_in_without_a_file) {
  api_keys keys;
  ASSERT_TRUE(keys.reload().ok());
  ASSERT_NE(keys.find(""), nullptr);
  EXPECT_EQ(keys.find("anything")->tenant, "");
}

TEST(api_keys, keep_the_old_keys_when_a_reload_fails) {
  const auto file = testing::TempDir() + "di_keys_test.yaml";
  std::ofstream{file} << keys_yaml;
  api_keys keys{file};
  ASSERT_TRUE(keys.reload().ok());
  ASSERT_NE(keys.find("sk-alice-1234"), nullptr);
  std::ofstream{file} << "keys: nothing\n";
  EXPECT_FALSE(keys.reload().ok());
  EXPECT_NE(keys.find("sk-alice-1234"), nullptr);
  std::ofstream{file} << "keys:\n  - {key: sk-carol-1}\n";
  ASSERT_TRUE(keys.reload().ok());
  EXPECT_EQ(keys.find("sk-alice-1234"), nullptr);
  EXPECT_NE(keys.find("sk-carol-1"), nullptr);
  std::remove(file.c_str());
}

TEST(api_keys, read_bearer_before_x_api_key) {
  EXPECT_EQ(bearer_key("Bearer abc", "x"), "abc");
  EXPECT_EQ(bearer_key("bearer  abc", ""), "abc");
  EXPECT_EQ(bearer_key("Basic abc", "x"), "x");
  EXPECT_EQ(bearer_key("", ""), "");
}

TEST(admission, turns_away_with_a_time_when_the_gateway_is_full) {
  admission doors{{2, 0}};
  const key_grant anyone;
  auto a = doors.enter(anyone, at_s(0));
  auto b = doors.enter(anyone, at_s(0));
  ASSERT_TRUE(std::holds_alternative<admission::ticket>(a));
  auto c = doors.enter(anyone, at_s(0));
  ASSERT_TRUE(std::holds_alternative<api_error>(c));
  EXPECT_EQ(std::get<api_error>(c).status, 503);
  EXPECT_GT(std::get<api_error>(c).retry_after_ms, 0U);
  b = api_error{};
  EXPECT_TRUE(std::holds_alternative<admission::ticket>(doors.enter(anyone, at_s(0))));
  EXPECT_EQ(doors.open(), 1U) << "the last ticket was dropped at once";
  EXPECT_EQ(doors.refused(), 1U);
}

TEST(admission, holds_one_key_back_and_not_the_others) {
  admission doors{{100, 1}};
  key_grant alice, bob;
  alice.name = "alice";
  bob.name = "bob";
  auto a = doors.enter(alice, at_s(0));
  auto again = doors.enter(alice, at_s(0));
  ASSERT_TRUE(std::holds_alternative<api_error>(again));
  EXPECT_EQ(std::get<api_error>(again).status, 429);
  EXPECT_TRUE(std::holds_alternative<admission::ticket>(doors.enter(bob, at_s(0))));
}

TEST(admission, gives_a_spent_budget_back_with_time) {
  admission doors{{100, 0}};
  key_grant alice;
  alice.name = "alice";
  alice.tokens_per_minute = 600;
  {
    auto t = std::get<admission::ticket>(doors.enter(alice, at_s(0)));
    t.spend(900, at_s(0)); // 300 ahead
  }
  auto no = doors.enter(alice, at_s(10)); // 100 came back
  ASSERT_TRUE(std::holds_alternative<api_error>(no));
  EXPECT_EQ(std::get<api_error>(no).status, 429);
  EXPECT_NEAR(static_cast<double>(std::get<api_error>(no).retry_after_ms), 20'100.0, 2.0);
  EXPECT_TRUE(std::holds_alternative<admission::ticket>(doors.enter(alice, at_s(31))));
}

TEST(api_error, has_the_shape_of_each_dialect) {
  auto e = bad_field("n", "n is 0; at least 1");
  const auto openai = json::parse(error_body(dialect::openai, e, "req_1"));
  EXPECT_EQ(openai["error"]["type"], "invalid_request_error");
  EXPECT_EQ(openai["error"]["param"], "n");
  const auto anthropic = json::parse(error_body(dialect::anthropic, e, "req_1"));
  EXPECT_EQ(anthropic["type"], "error");
  EXPECT_EQ(anthropic["error"]["type"], "invalid_request_error");
  EXPECT_EQ(anthropic["request_id"], "req_1");
  EXPECT_FALSE(anthropic["error"].contains("param"));
}

TEST(api_error, stays_small_and_well_formed_whatever_the_message) {
  const auto e = make_error(400, std::string(1'000'000, '\xf0'));
  EXPECT_LT(error_body(dialect::openai, e, "r").size(), 10'000U);
  std::string snowmen;
  for (int i = 0; i < 1'000; ++i)
    snowmen += "\xe2\x98\x83";
  const auto body = json::parse(error_body(dialect::openai, make_error(400, snowmen), "r"));
  EXPECT_EQ(body["error"]["message"].get<std::string>().find("\xef\xbf\xbd"), std::string::npos);
}

TEST(api_error, tells_what_passes_from_what_does_not) {
  EXPECT_EQ(from_cluster(ec::limit_exceeded, "x", 0).status, 429);
  EXPECT_EQ(from_cluster(ec::unavailable, "x", 2'500).retry_after_ms, 2'500U);
  EXPECT_EQ(retry_after(2'500), "3");
  for (const int passes : {429, 503})
    EXPECT_GT(make_error(passes, "x").retry_after_ms, 0U);
  EXPECT_EQ(make_error(500, "x").retry_after_ms, 0U);
  EXPECT_EQ(from_cluster(ec::context_exceeded, "x", 0).code, "context_length_exceeded");
  EXPECT_EQ(from_cluster(ec::context_exceeded, "x", 0).status, 400);
  EXPECT_EQ(from_cluster(ec::deadline_exceeded, "x", 0).status, 504);
  EXPECT_EQ(from_cluster(ec::internal, "x", 0).status, 500);
}

TEST(public_id, comes_back_from_its_text) {
  for (const auto protocol : {engine::api::chat, engine::api::completions, engine::api::responses,
                              engine::api::messages}) {
    const public_id id{protocol, request_id{0x123456789abcdef0}, 0xfedcba9876543210};
    EXPECT_EQ(public_id::parse(id.text()), id);
  }
  EXPECT_FALSE(public_id::parse("chatcmpl-1"));
  EXPECT_FALSE(public_id::parse("chatcmpl-0123456789abcdeg0123456789abcdef"));
  EXPECT_FALSE(public_id::parse("nope_0123456789abcdef0123456789abcdef"));
}

TEST(event_id, counts_the_events_of_each_choice_and_the_tail) {
  const event_id id{{engine::api::chat, request_id{7}, 9}, {3, 0, 12}, 1};
  const auto back = event_id::parse(id.text());
  ASSERT_TRUE(back);
  EXPECT_EQ(back->seen, id.seen);
  EXPECT_EQ(back->tail, 1U);
  EXPECT_EQ(back->answer, id.answer);
  EXPECT_FALSE(event_id::parse(id.answer.text() + ":1,x"));
  EXPECT_FALSE(event_id::parse(id.answer.text() + ":t1,2"));
  EXPECT_FALSE(event_id::parse(id.answer.text()));
  EXPECT_FALSE(event_id::parse("abc:1"));
}

} // namespace
} // namespace di::serve
