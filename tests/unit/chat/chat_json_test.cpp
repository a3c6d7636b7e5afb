// SPDX-License-Identifier: Apache-2.0
// JSON of clients: what is refused and where, and the text forms.
#include "engine/chat/json.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

std::string refusal(std::string_view text, const chat_json_limits& limits = {}) {
  const auto parsed = parse_chat_json(text, limits);
  return parsed.ok() ? "accepted: " + parsed->dump().substr(0, 80) : parsed.error().what;
}

bool names_byte(std::string_view text, std::size_t byte) {
  const std::string why = refusal(text);
  const bool named = why.starts_with("invalid JSON at byte " + std::to_string(byte) + ":");
  if (!named)
    ADD_FAILURE() << "expected byte " << byte << ": " << why;
  return named;
}

TEST(chat_json, names_the_byte_of_what_is_wrong) {
  EXPECT_TRUE(names_byte(R"({"model":"m",x})", 13));
  EXPECT_TRUE(names_byte(R"({"a": NaN})", 6));
  EXPECT_TRUE(names_byte(R"({"a": 1} x)", 9));
  EXPECT_TRUE(names_byte(R"(["\ud83d"])", 8));
  EXPECT_TRUE(names_byte("[\"a\xff\"]", 3));
  EXPECT_TRUE(names_byte(std::string_view{"{}\0{}", 5}, 2));
  EXPECT_TRUE(names_byte(R"({"a": 1, "a": 2})", 11));
}

TEST(chat_json, refuses_what_is_too_deep_before_it_is_built) {
  const std::string deep(100'000, '[');
  EXPECT_EQ(refusal(deep), "invalid JSON at byte 128: nested deeper than 128 levels");
}

TEST(chat_json, refuses_what_is_too_long_or_has_too_many_values) {
  chat_json_limits limits;
  limits.bytes_max = 10;
  EXPECT_EQ(refusal("[1, 2, 3, 4]", limits), "12 bytes of JSON, at most 10 are read");
  limits = {};
  limits.values_max = 3;
  EXPECT_EQ(refusal("[1, 2, 3]", limits), "invalid JSON at byte 8: more than 3 values");
}

TEST(chat_json, never_repeats_much_of_the_input) {
  const std::string key(100'000, 'k');
  EXPECT_LT(refusal("{\"" + key + "\": 1, \"" + key + "\": 2}").size(), 200U);
  EXPECT_LT(refusal("[1" + std::string(100'000, '0') + "e999]").size(), 200U);
}

TEST(chat_json, lets_a_repeated_key_keep_its_place_and_its_last_value) {
  chat_json_limits limits;
  limits.repeated = repeated_keys::keep_last;
  EXPECT_EQ(prompt_json(parse_chat_json(R"({"a": 1, "b": 2, "a": [3]})", limits).value()),
            R"({"a": [3], "b": 2})");
  std::string many = "{";
  for (int i = 0; i < 100; ++i)
    many += "\"k" + std::to_string(i) + "\": 0, ";
  const json object = parse_chat_json(many + R"("k7": 7, "k99": 99})", limits).value();
  EXPECT_EQ(object.size(), 100U);
  EXPECT_EQ(object["k7"], 7);
  EXPECT_EQ(object["k99"], 99);
}

TEST(chat_json, stays_linear_in_keys_that_repeat) {
  chat_json_limits limits;
  limits.repeated = repeated_keys::keep_last;
  std::string text = "{";
  for (int i = 0; i < 60'000; ++i)
    text += "\"k" + std::to_string(i) + "\": 0, ";
  for (int i = 0; i < 60'000; ++i)
    text += "\"k59999\": 0, ";
  text += "\"z\": 1}";
  EXPECT_EQ(parse_chat_json(text, limits).value().size(), 60'001U);
}

TEST(chat_json, writes_numbers_as_prompts_show_them) {
  const auto shown = [](std::string_view text) {
    return prompt_json(parse_chat_json(text).value());
  };
  EXPECT_EQ(shown("[1, -1, 18446744073709551615, 12345678901234567890123]"),
            "[1, -1, 18446744073709551615, 1.2345678901234568e+22]");
  EXPECT_EQ(shown("[0.1, 1.0, 1e5, 1e15, 1e16, 1e-4, 1e-5, 1e-7, -0.0, -0, 2.5e100]"),
            "[0.1, 1.0, 100000.0, 1000000000000000.0, 1e+16, 0.0001, 1e-05, 1e-07, -0.0, -0.0, "
            "2.5e+100]");
}

TEST(chat_json, escapes_only_what_must_be_escaped) {
  const json text = "a\"\\\b\f\n\r\t\x01\x1f\x7f\u00e9\u2028";
  EXPECT_EQ(prompt_json(text), "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\u00e9\u2028\"");
}

TEST(chat_json, writes_constraints_without_blanks) {
  const json value = parse_chat_json(R"({"a": [1.0, 1e-7, 1e22], "b": {}})").value();
  EXPECT_EQ(constraint_json(value), R"({"a":[1.0,1e-7,1e+22],"b":{}})");
}

} // namespace
} // namespace di::engine
