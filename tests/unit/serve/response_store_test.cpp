// SPDX-License-Identifier: Apache-2.0
// What is kept of responses: conversations, input items, pages, repeated fields.
#include "launch/serve/response_store.hpp"

#include <gtest/gtest.h>

#include <set>

namespace di::serve {
namespace {

using engine::json;

template <class T>
bool refused(const std::variant<T, api_error>& v, const std::string& param) {
  const auto* no = std::get_if<api_error>(&v);
  return no != nullptr && no->status == 400 && no->param == param;
}

TEST(response_store, stores_unless_it_is_told_otherwise) {
  EXPECT_TRUE(std::get<keeping>(read_keeping(json::object())).store);
  EXPECT_FALSE(std::get<keeping>(read_keeping(json{{"store", false}})).store);
  EXPECT_TRUE(std::get<keeping>(read_keeping(json{{"store", nullptr}})).store);
  EXPECT_TRUE(std::get<keeping>(read_keeping(json{{"background", true}})).background);
  const json on{{"previous_response_id", "resp_1"}};
  EXPECT_EQ(std::get<keeping>(read_keeping(on)).previous, "resp_1");
}

TEST(response_store, refuses_what_it_cannot_keep_and_names_the_field) {
  EXPECT_TRUE(refused(read_keeping(json{{"store", "yes"}}), "store"));
  EXPECT_TRUE(refused(read_keeping(json{{"background", 1}}), "background"));
  EXPECT_TRUE(refused(read_keeping(json{{"background", true}, {"store", false}}), "background"));
  EXPECT_TRUE(refused(read_keeping(json{{"previous_response_id", 7}}), "previous_response_id"));
  EXPECT_TRUE(refused(read_keeping(json{{"conversation", "conv_1"}}), "conversation"));
  EXPECT_TRUE(refused(read_keeping(json{{"prompt", {{"id", "p"}}}}), "prompt"));
  EXPECT_TRUE(std::holds_alternative<keeping>(read_keeping(json{{"conversation", nullptr}})));
}

TEST(response_store, bounds_metadata_and_names_what_changes_nothing) {
  EXPECT_TRUE(refused(read_keeping(json{{"metadata", "x"}}), "metadata"));
  EXPECT_TRUE(refused(read_keeping(json{{"metadata", {{"a", 1}}}}), "metadata"));
  EXPECT_TRUE(
      refused(read_keeping(json{{"metadata", {{"a", std::string(513, 'x')}}}}), "metadata"));
  json many = json::object();
  for (int i = 0; i < 17; ++i)
    many[std::to_string(i)] = "x";
  EXPECT_TRUE(refused(read_keeping(json{{"metadata", many}}), "metadata"));
  EXPECT_TRUE(std::holds_alternative<keeping>(
      read_keeping(json{{"metadata", {{"a", std::string(512, 'x')}}}})));
  EXPECT_EQ(unused_fields(json{{"truncation", "auto"}, {"max_tool_calls", 3}}).size(), 2U);
  EXPECT_TRUE(unused_fields(json{{"truncation", "disabled"}, {"max_tool_calls", nullptr}}).empty());
}

TEST(response_store, makes_items_of_a_text_and_of_short_messages) {
  const json one = input_as_items("hi", 1);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0]["type"], "message");
  EXPECT_EQ(one[0]["role"], "user");
  EXPECT_EQ(one[0]["content"], json::parse(R"([{"type":"input_text","text":"hi"}])"));
  const json input = json::parse(R"([{"role":"assistant","content":"so"},
    {"type":"function_call","id":"fc_7","call_id":"c","name":"f","arguments":"{}"},
    {"type":"function_call_output","call_id":"c","output":"x"},
    {"role":"user","content":[{"type":"input_text","text":"a"}],"id":5}])");
  const json items = input_as_items(input, 1);
  ASSERT_EQ(items.size(), 4U);
  EXPECT_EQ(items[0]["content"][0]["type"], "output_text");
  EXPECT_EQ(items[1]["id"], "fc_7");
  EXPECT_TRUE(items[2]["id"].get<std::string>().starts_with("fco_"));
  EXPECT_TRUE(items[3]["id"].is_string());
  std::set<std::string> ids;
  for (const json& item : items)
    ids.insert(item["id"].get<std::string>());
  EXPECT_EQ(ids.size(), 4U);
}

TEST(response_store, lets_no_two_items_have_one_id) {
  json items = input_as_items(json::parse(R"([{"id":"a","role":"user","content":"1"},
    {"id":"a","role":"user","content":"2"}])"),
                              1);
  append_items(items, json::parse(R"([{"id":"a"},{"id":"b"}])"), 1);
  ASSERT_EQ(items.size(), 4U);
  std::set<std::string> ids;
  for (const json& item : items)
    ids.insert(item["id"].get<std::string>());
  EXPECT_EQ(ids.size(), 4U);
  EXPECT_EQ(items[0]["id"], "a");
  EXPECT_EQ(items[3]["id"], "b");
}

TEST(response_store, survives_items_of_any_shape) {
  for (const char* const text :
       {"null", "7", "{}", R"([{"role":[],"id":5}])", "[null, 1, \"a\", [], {}]",
        R"([{"type":7,"role":[],"content":"a"}])",
        R"([{"type":"message","role":{},"content":"a"}])", R"([{"content":"a"}])"})
    EXPECT_TRUE(std::holds_alternative<json>(page_of(input_as_items(json::parse(text), 1), {})))
        << text;
  for (const char* const text : {"null", "7", "[]", "{}", R"({"store":1})"})
    EXPECT_FALSE(stored_response::from_json(json::parse(text))) << text;
}

TEST(response_store, comes_back_from_its_note_as_it_was) {
  stored_response s;
  s.background = true;
  s.previous = "resp_0";
  s.items = input_as_items("hi", 3);
  const auto back = stored_response::from_json(json::parse(s.to_json().dump()));
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->store);
  EXPECT_TRUE(back->background);
  EXPECT_EQ(back->previous, "resp_0");
  EXPECT_EQ(back->items, s.items);
}

TEST(response_store, continues_with_input_and_output_in_order) {
  stored_response s;
  s.items = input_as_items("hi", 3);
  const json response{{"output", {{{"type", "reasoning"}}, {{"type", "message"}}}}};
  const json all = conversation_after(s, response);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0], s.items[0]);
  EXPECT_EQ(all[1]["type"], "reasoning");
  EXPECT_EQ(all[2]["type"], "message");
}

TEST(response_store, repeats_what_was_asked_and_never_inherits) {
  const json body = json::parse(R"({"instructions":"be brief","temperature":0.5,"input":"x",
    "reasoning":{"effort":"low"},"text":{"format":{"type":"json_object"}},"metadata":{"a":"b"}})");
  const json echo = repeated_fields(body, {true, false, "resp_0"});
  EXPECT_EQ(echo["instructions"], "be brief");
  EXPECT_EQ(echo["temperature"], 0.5);
  EXPECT_EQ(echo["reasoning"], json::parse(R"({"effort":"low","summary":null})"));
  EXPECT_EQ(echo["text"]["format"]["type"], "json_object");
  EXPECT_EQ(echo["previous_response_id"], "resp_0");
  EXPECT_EQ(echo["store"], true);
  EXPECT_FALSE(echo.contains("input"));
  EXPECT_FALSE(repeated_fields(json::object(), {}).contains("instructions"));
}

TEST(response_store, pages_through_items_either_way_without_loss_or_repeat) {
  json items = json::array();
  for (int i = 0; i < 7; ++i)
    items.push_back({{"id", "i" + std::to_string(i)}});
  for (const bool newest : {true, false}) {
    std::vector<std::string> seen;
    page_query page{3, newest, {}};
    bool more = true;
    while (more && seen.size() < 20) {
      const json got = std::get<json>(page_of(items, page));
      for (const json& item : got["data"])
        seen.push_back(item["id"]);
      EXPECT_EQ(got["first_id"], got["data"].front()["id"]);
      more = got["has_more"];
      page.after = got["last_id"];
    }
    ASSERT_EQ(seen.size(), 7U);
    EXPECT_EQ(seen.front(), newest ? "i6" : "i0");
    EXPECT_EQ(seen.back(), newest ? "i0" : "i6");
  }
  EXPECT_TRUE(refused(page_of(items, {3, true, "none"}), "after"));
  EXPECT_EQ(std::get<json>(page_of(json::array(), {}))["last_id"], nullptr);
}

TEST(response_store, refuses_pages_that_are_none) {
  for (const char* const limit : {"0", "101", "-1", "x", "", "1.5", "99999999999999999999"})
    EXPECT_TRUE(refused(read_page(limit, {}, {}), "limit")) << limit;
  EXPECT_TRUE(refused(read_page({}, "up", {}), "order"));
  const auto page = std::get<page_query>(read_page("100", "asc", "a"));
  EXPECT_EQ(page.limit, 100U);
  EXPECT_FALSE(page.newest_first);
  EXPECT_EQ(page.after, "a");
}

TEST(response_store, counts_items_in_errors_as_the_client_sent_them) {
  api_error e;
  e.message = "input[5].content: wrong; see input[12]";
  e.param = "input[5].content";
  count_from_own_items(e, 5);
  EXPECT_EQ(e.message, "input[0].content: wrong; see input[7]");
  EXPECT_EQ(e.param, "input[0].content");
}

} // namespace
} // namespace di::serve
