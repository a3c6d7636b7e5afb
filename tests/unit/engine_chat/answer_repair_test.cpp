// SPDX-License-Identifier: Apache-2.0
// Where the parser departs from its reference: each row of "Deviations from the reference parser"
// (doc/serving.md), and the reference's own result in strict mode beside it.
#include "tests/support/answer_client.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace di::engine::testing {
namespace {

answer_recipe chat_recipe(bool strict = false) {
  answer_recipe r;
  r.id = "chatcmpl-1";
  r.parsing.strict = strict;
  return r;
}

client_view read(const answer_recipe& recipe, const std::string& text,
                 answer_end why = answer_end::stop) {
  answer_stream stream{std::make_shared<const answer_recipe>(recipe), nullptr};
  const client_view view = client_of(recipe.protocol, stream_text(stream, {text}, why));
  EXPECT_EQ(view.problem, "");
  client_view whole = client_of_final(recipe.protocol, stream.final());
  EXPECT_EQ(view, whole);
  return view;
}

std::string block(const std::vector<std::string>& parameters) {
  return fmt::format("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n{}</｜DSML｜ invoke>\n"
                     "</｜DSML｜ calls>",
                     fmt::join(parameters, ""));
}

std::string parameter(const std::string& head, const std::string& value) {
  return fmt::format("<｜DSML｜ parameter name={}>{}</｜DSML｜ parameter>\n", head, value);
}

std::string arguments(const std::string& text, bool strict, answer_end why = answer_end::stop) {
  answer_recipe recipe = chat_recipe(strict);
  recipe.parsing.tool_calls = true;
  const client_view view = read(recipe, text, why);
  return view.calls.size() == 1 ? view.calls[0].arguments
                                : fmt::format("{} calls", view.calls.size());
}

void expect_arguments(const std::string& text, const std::string& ours,
                      const std::string& reference) {
  EXPECT_EQ(arguments(text, false), ours);
  EXPECT_TRUE(json::accept(ours)) << ours;
  EXPECT_EQ(arguments(text, true), reference);
}

TEST(answer_repair, escapes_quotes_blanks_and_controls_in_keys) {
  expect_arguments(block({parameter("\"x y\" string=\"true\"", "v")}), R"({"x y": "v"})",
                   R"({"x: "v"})");
  expect_arguments(block({parameter("\"\"q\"\" string=\"true\"", "v")}), R"({"\"q\"": "v"})",
                   R"({""q"": "v"})");
  expect_arguments(block({parameter("\"\xC3\xA9\n\" string=\"true\"", "v")}),
                   "{\"\xC3\xA9\\n\": \"v\"}", "{\"\xC3\xA9\n\": \"v\"}");
  expect_arguments(block({parameter("\"\" string=\"false\"", "1")}), R"({"": 1})", R"({"": 1})");
}

TEST(answer_repair, reads_values_whose_string_attribute_is_missing_or_unknown) {
  expect_arguments(block({parameter("\"a\"", "x")}), R"({"a": "x"})", "{\"a\">x</｜DSML｜: ");
  expect_arguments(block({parameter("\"a\" string=\"yes\"", "x")}), R"({"a": "x"})", R"({"a": )");
  EXPECT_EQ(arguments(block({parameter("\"a\"", "[1, {\"k\": null}]")}), false),
            R"({"a": [1, {"k": null}]})");
  EXPECT_EQ(arguments(block({parameter("\"a\"", "12")}), false), R"({"a": "12"})");
}

TEST(answer_repair, makes_strings_of_values_that_are_no_json) {
  expect_arguments(block({parameter("\"a\" string=\"false\"", "not json"),
                          parameter("\"b\" string=\"false\"", "")}),
                   R"({"a": "not json", "b": ""})", R"({"a": not json, "b": })");
  expect_arguments(block({parameter("\"a\" string=\"false\"", "{\"k\": }")}),
                   R"({"a": "{\"k\": }"})", R"({"a": {"k": }})");
  EXPECT_EQ(arguments(block({parameter("\"a\" string=\"false\"", "NaN")}), false),
            R"({"a": "NaN"})");
}

TEST(answer_repair, bounds_the_levels_of_values) {
  std::string deep(100'000, '[');
  deep.append(100'000, ']');
  EXPECT_EQ(arguments(block({parameter("\"a\" string=\"false\"", deep)}), false),
            fmt::format("{{\"a\": \"{}\"}}", deep));
}

TEST(answer_repair, keeps_the_first_of_equal_keys) {
  expect_arguments(
      block({parameter("\"a\" string=\"true\"", "1"), parameter("\"a\" string=\"true\"", "2"),
             parameter("\"b\" string=\"false\"", "3")}),
      R"({"a": "1", "b": 3})", R"({"a": "1", "a": "2", "b": 3})");
}

TEST(answer_repair, closes_arguments_wherever_the_output_is_cut_off) {
  const std::string whole =
      fmt::format("Hi\n\n{}", block({parameter("\"a\" string=\"true\"", "x\"y"),
                                     parameter("\"b\" string=\"false\"", "[1, 2]")}));
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    if ((static_cast<unsigned char>(whole[cut]) & 0xC0) == 0x80)
      continue; // inside a character
    for (const answer_end why : {answer_end::stop, answer_end::length}) {
      answer_recipe recipe = chat_recipe();
      recipe.parsing.tool_calls = true;
      const client_view view = read(recipe, whole.substr(0, cut), why);
      for (const client_view::call& c : view.calls)
        EXPECT_TRUE(json::parse(c.arguments, nullptr, false).is_object()) << c.arguments;
      const std::string_view ended = view.calls.empty() ? "stop" : "tool_calls";
      EXPECT_EQ(view.finish, why == answer_end::length ? "length" : ended);
    }
  }
}

TEST(answer_repair, leaves_blanks_and_prose_around_json_out) {
  answer_recipe recipe = chat_recipe();
  recipe.parsing.json = true;
  const auto content = [&](const std::string& text, bool strict) {
    recipe.parsing.strict = strict;
    return read(recipe, text).content;
  };
  EXPECT_EQ(content("Here:\n```json\n{\"a\": 1}\n```\nDone.", false), "{\"a\": 1}");
  EXPECT_EQ(content("Here:\n```json\n{\"a\": 1}\n```\nDone.", true), " {\"a\": 1} ");
  EXPECT_EQ(content("text {\"a\": \"br{ace\\\"}\"} more", false), "{\"a\": \"br{ace\\\"}\"}");
  EXPECT_EQ(content("text {\"a\": 1} more", true), " {\"a\": 1} more");
  EXPECT_EQ(content("{\"a\":1}{\"b\":2}", false), "{\"a\":1}");
  EXPECT_EQ(content("{\"s\": \"``` inside\"}\n", false), "{\"s\": \"``` inside\"}");
  EXPECT_EQ(content("no json at all", false), "no json at all");
  EXPECT_EQ(content("no json at all", true), " ");
}

TEST(answer_repair, finds_tool_calls_behind_bare_json) {
  answer_recipe recipe = chat_recipe();
  recipe.parsing.json = recipe.parsing.tool_calls = true;
  const std::string text =
      fmt::format("{{\"a\":1}}\n\n{}", block({parameter("\"a\" string=\"true\"", "x")}));
  const client_view ours = read(recipe, text);
  EXPECT_EQ(ours.content, "{\"a\":1}");
  ASSERT_EQ(ours.calls.size(), 1U);
  recipe.parsing.strict = true;
  EXPECT_EQ(read(recipe, text).calls.size(), 0U);
}

TEST(answer_repair, removes_ends_of_reasoning_from_json) {
  answer_recipe recipe = chat_recipe();
  recipe.parsing.json = true;
  EXPECT_EQ(read(recipe, "{\"a\": </think>1}").content, "{\"a\": 1}");
  recipe.parsing.strict = true;
  EXPECT_EQ(read(recipe, "{\"a\": </think>1}").content, "{\"a\": </think>1}");
}

TEST(answer_repair, calls_only_completed_responses_completed) {
  answer_recipe recipe = chat_recipe();
  recipe.protocol = api::responses;
  for (const bool strict : {false, true}) {
    recipe.parsing.strict = strict;
    answer_stream stream{std::make_shared<const answer_recipe>(recipe), nullptr};
    stream.ended_at(99);
    stream_text(stream, {"a"}, answer_end::length);
    EXPECT_EQ(stream.final()["completed_at"], strict ? json(99) : json(nullptr));
  }
}

TEST(answer_repair, takes_a_call_whose_end_tag_was_forgotten) {
  answer_recipe recipe = chat_recipe();
  recipe.parsing.tool_calls = true;
  const std::string text = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ invoke "
                           "name=\"g\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const client_view view = read(recipe, text);
  ASSERT_EQ(view.calls.size(), 2U);
  EXPECT_EQ(view.calls[0].arguments, "{}");
  EXPECT_EQ(view.calls[1].name, "g");
}

// --- tokens -----------------------------------------------------------------------------------

const tokenizer& tiny() {
  static const tokenizer words =
      tokenizer::load(DI_SOURCE_DIR "/tests/golden/data/tokenizer/tiny/tokenizer.json").value();
  return words;
}

std::vector<token_id> ids_of(const std::string& text) {
  return tiny().encode(text, encode_mode::full).value();
}

// The token of one byte.
token_id byte_token(char c) {
  for (token_id id = 0; id < static_cast<token_id>(tiny().size()); ++id)
    if (tiny().token_bytes(id) == std::string_view{&c, 1})
      return id;
  return -1;
}

client_view read_tokens(const answer_recipe& recipe, const std::vector<token_id>& ids) {
  answer_stream stream{std::make_shared<const answer_recipe>(recipe), &tiny()};
  const client_view view = client_of(recipe.protocol, stream_tokens(stream, ids));
  EXPECT_EQ(view, client_of_final(recipe.protocol, stream.final()));
  return view;
}

TEST(answer_repair, shows_no_control_tokens_but_grounding) {
  const std::string text = "a<｜end▁of▁sentence｜>b<｜User｜>c<|EOT|>d<｜deepseek_image｜>";
  EXPECT_EQ(read_tokens(chat_recipe(), ids_of(text)).content, "abcd");
  EXPECT_EQ(read_tokens(chat_recipe(true), ids_of(text)).content, text);
  answer_recipe thinks = chat_recipe();
  thinks.parsing.begins = start_stage::reasoning;
  const client_view view = read_tokens(thinks, ids_of("<think>\nwhy</think><think>\n\nso"));
  EXPECT_EQ(view.reasoning, "why");
  EXPECT_EQ(view.content, "so");
}

TEST(answer_repair, ends_an_incomplete_character_with_a_replacement) {
  std::vector<token_id> ids;
  for (const char c : {'x', '\xE2', '\x82'})
    ids.push_back(byte_token(c));
  EXPECT_EQ(read_tokens(chat_recipe(), ids).content, "x\xEF\xBF\xBD");
  EXPECT_EQ(read_tokens(chat_recipe(true), ids).content, "x");
}

TEST(answer_repair, counts_sampled_tokens_as_reasoning) {
  answer_recipe recipe = chat_recipe();
  recipe.parsing.begins = start_stage::reasoning;
  recipe.parsing.thinking = true;
  const std::vector<token_id> ids = ids_of("why not</think>so");
  answer_stream stream{std::make_shared<const answer_recipe>(recipe), &tiny()};
  stream_tokens(stream, ids);
  const auto marker = std::find(ids.begin(), ids.end(), *tiny().added_token("</think>"));
  EXPECT_EQ(stream.usage().reasoning, static_cast<std::uint64_t>(marker - ids.begin()) + 1);
  EXPECT_EQ(stream.usage().completion, ids.size());
}

} // namespace
} // namespace di::engine::testing
