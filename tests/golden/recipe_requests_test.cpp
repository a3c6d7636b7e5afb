// SPDX-License-Identifier: Apache-2.0
// Every stored request of the reference encoding: prompt, token ids, images, sampling, constraint,
// parsing, limits; or the error.
#include "launch/cmd_codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace di::launch {
namespace {

using engine::json;

const std::string unpacked = DI_BINARY_DIR "/tests/golden/";

const engine::tokenizer& words() {
  static const engine::tokenizer loaded =
      engine::tokenizer::load(unpacked + "tokenizer/tokenizer.json").value();
  return loaded;
}

std::vector<json> rows(const std::string& name) {
  engine::chat_json_limits limits;
  limits.repeated = engine::repeated_keys::keep_last;
  std::vector<json> out;
  std::ifstream in{unpacked + "recipe/requests_" + name + ".jsonl"};
  for (std::string line; std::getline(in, line);)
    out.push_back(engine::parse_chat_json(line, limits).value());
  return out;
}

// What may differ is the wording of parse errors.
void forget_wording(json& result) {
  if (result.value("phase", "") == "parse")
    result.erase("detail");
}

std::string first_difference(const json& expected, const json& found) {
  for (const auto& [key, value] : expected.items()) {
    if (!found.contains(key))
      return key + ": missing";
    if (found[key] == value)
      continue;
    if (!value.is_array() || !found[key].is_array())
      return key + ": expected " + value.dump().substr(0, 1500) + "\n   found "
             + found[key].dump().substr(0, 1500);
    for (std::size_t i = 0; i < std::max(value.size(), found[key].size()); ++i)
      if (i >= value.size() || i >= found[key].size() || value[i] != found[key][i])
        return key + "[" + std::to_string(i) + "]: expected "
               + (i < value.size() ? value[i].dump() : "nothing") + "\n   found "
               + (i < found[key].size() ? found[key][i].dump() : "nothing");
  }
  return found.size() == expected.size() ? "" : "more fields: " + found.dump().substr(0, 300);
}

std::set<std::string> differing(const std::string& file, std::size_t count, bool strict,
                                bool print) {
  std::set<std::string> out;
  const std::vector<json> all = rows(file);
  EXPECT_EQ(all.size(), count);
  for (const json& row : all) {
    json expected = row["result"];
    json found = render_row(row, &words(), codec_rules(strict));
    found.erase("warnings");
    if (!strict && found.contains("body"))
      found["body"]["error"]["param"] = nullptr; // named here, never in the reference
    forget_wording(expected);
    forget_wording(found);
    const std::string difference = first_difference(expected, found);
    if (difference.empty())
      continue;
    out.insert(row["id"].get<std::string>());
    if (print)
      ADD_FAILURE() << row["id"] << " (" << row.value("cat", "") << "): " << difference;
  }
  return out;
}

TEST(recipe_requests, chat_rows_equal_the_reference) {
  EXPECT_TRUE(differing("chat", 385, true, true).empty());
}
TEST(recipe_requests, responses_rows_equal_the_reference) {
  EXPECT_TRUE(differing("responses", 253, true, true).empty());
}
TEST(recipe_requests, messages_rows_equal_the_reference) {
  EXPECT_TRUE(differing("messages", 284, true, true).empty());
}
TEST(recipe_requests, rows_of_the_older_encoding_equal_the_reference) {
  EXPECT_TRUE(differing("v4", 32, true, true).empty());
}

// The documented deviations, and nothing else, change what a row gives.
TEST(recipe_requests, by_default_only_the_documented_rows_differ) {
  using names = std::set<std::string>;
  // effort as a number, max_completion_tokens, n, unknown model, role developer, arguments as an
  // object, repeated key
  EXPECT_EQ(differing("chat", 385, false, false),
            (names{"chat-pub-024", "chat-pub-053", "chat-pub-062", "chat-pub-069", "chat-pub-086",
                   "chat-pub-160", "chat-pub-383"}));
  // effort as a number, max_output_tokens out of range (two), repeated key
  EXPECT_EQ(
      differing("responses", 253, false, false),
      (names{"responses-pub-006", "responses-pub-024", "responses-pub-025", "responses-pub-250"}));
  // tool_choice any, repeated key
  EXPECT_EQ(differing("messages", 284, false, false),
            (names{"messages-pub-125", "messages-pub-282"}));
  EXPECT_EQ(differing("v4", 32, false, false), names{});
}

TEST(recipe_requests, lines_of_the_command_keep_their_fields_and_name_bad_lines) {
  std::istringstream in{R"({"id": 1, "request": {"model": "DeepSeek-V4.1-Flash", "messages":
[{"role": "user", "content": "Hi"}]}})"
                        "\n\n[]\n"
                        R"({"id": 2, "family": "messages", "request_text": "{"})"};
  std::string text = in.str();
  text.erase(text.find('\n'), 1); // one row a line
  std::istringstream lines{text};
  std::ostringstream out, errors;
  const line_counts counts = render_lines(nullptr, codec_rules(false), lines, out, errors);
  EXPECT_EQ(counts.done, 2U);
  EXPECT_EQ(counts.failed, 1U);
  EXPECT_EQ(errors.str(), "dilaunch codec render: line 3: expected an object\n");
  const std::string first = out.str().substr(0, out.str().find('\n'));
  const json row = engine::parse_chat_json(first).value();
  EXPECT_EQ(row["id"], 1);
  EXPECT_EQ(row["result"]["ok"], true);
  EXPECT_FALSE(row["result"].contains("ids"));
  EXPECT_NE(out.str().find("\"phase\":\"parse\",\"kind\":\"json\""), std::string::npos);
}

} // namespace
} // namespace di::launch
