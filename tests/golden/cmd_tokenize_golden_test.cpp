// SPDX-License-Identifier: Apache-2.0
// The stored cases through the commands: every field that they print equals the stored one; bad
// lines are counted.
#include "launch/cmd_tokenize.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <sstream>

namespace di::launch {
namespace {

using json = nlohmann::json;

const std::string data_dir = DI_SOURCE_DIR "/tests/golden/data/tokenizer/";
const std::string tiny_file = data_dir + "tiny/tokenizer.json";

std::string read(const std::string& path) {
  std::ifstream in{path};
  return {std::istreambuf_iterator<char>{in}, {}};
}

const engine::tokenizer& tiny() {
  static const engine::tokenizer t = engine::tokenizer::load(tiny_file).value();
  return t;
}

// Each printed field equals that of the stored line.
void compare(const std::string& printed, const std::string& stored, std::size_t lines) {
  std::istringstream a{printed}, b{stored};
  std::string got, expected;
  std::size_t n = 0;
  for (; std::getline(a, got) && std::getline(b, expected); ++n) {
    const json fields = json::parse(got), wanted = json::parse(expected);
    for (const auto& [key, value] : fields.items())
      ASSERT_EQ(value, wanted.at(key)) << key << " of line " << n + 1;
  }
  EXPECT_EQ(n, lines);
}

TEST(cmd_tokenize, prints_the_fields_of_the_stored_cases) {
  const std::string stored = read(data_dir + "tiny_encode.jsonl");
  std::istringstream in{stored};
  std::ostringstream out, errors;
  EXPECT_EQ(tokenize_lines(tiny(), false, in, out, errors).done, 450U);
  compare(out.str(), stored, 450);
  EXPECT_EQ(errors.str(), "");
}

TEST(cmd_tokenize, prints_pieces_when_asked_to) {
  std::istringstream in{R"({"text": "a 12345"})"};
  std::ostringstream out, errors;
  tokenize_lines(tiny(), true, in, out, errors);
  EXPECT_EQ(json::parse(out.str())["pieces"], json({"a", " ", "123", "45"}));
}

TEST(cmd_detokenize, prints_the_fields_of_the_stored_cases) {
  const std::string stored = read(data_dir + "tiny_decode.jsonl");
  std::istringstream in{stored};
  std::ostringstream out, errors;
  EXPECT_EQ(detokenize_lines(tiny(), in, out, errors).done, 140U);
  compare(out.str(), stored, 140);
}

TEST(cmd_tokenize, names_bad_lines_by_number_and_goes_on) {
  std::istringstream in{
      "{\"text\": \"a\"}\n\nnonsense\n{\"text\": 3}\n[1]\n{\"text\": \"b\", \"id\": [7]}"};
  std::ostringstream out, errors;
  const line_counts counts = tokenize_lines(tiny(), false, in, out, errors);
  EXPECT_EQ(counts.done, 2U);
  EXPECT_EQ(counts.failed, 3U);
  EXPECT_NE(out.str().find("{\"id\":[7],\"text\":\"b\",\"ids\":[68],\"ids_plain\":null}\n"),
            std::string::npos);
  EXPECT_NE(errors.str().find("line 3: [json.exception.parse_error"), std::string::npos);
  EXPECT_NE(errors.str().find("line 4: text: expected a string, found number\n"),
            std::string::npos);
  EXPECT_NE(errors.str().find("line 5: expected an object, found array\n"), std::string::npos);
}

TEST(cmd_detokenize, refuses_ids_that_are_no_ids_and_passes_unknown_ones_over) {
  std::istringstream in{
      "{\"ids\": [68, -1]}\n{\"ids\": [68, 1e3]}\n{\"ids\": 5}\n{}\n{\"ids\": [68, 2000000000]}"};
  std::ostringstream out, errors;
  EXPECT_EQ(detokenize_lines(tiny(), in, out, errors).failed, 4U);
  EXPECT_NE(errors.str().find("line 1: ids[1]: expected a token id, found -1\n"),
            std::string::npos);
  EXPECT_EQ(json::parse(out.str())["text"], "b");
}

TEST(cmd_tokenize, ends_with_the_exit_code_of_its_outcome) {
  const std::string in = testing::TempDir() + "di_tokenize_in.jsonl",
                    out = testing::TempDir() + "di_tokenize_out.jsonl";
  const auto run = [&](const std::string& content, const std::string& tokenizer) {
    std::ofstream{in} << content;
    CLI::App app;
    int code = -1;
    add_tokenize_commands(app, code);
    app.parse("tokenize --tokenizer " + tokenizer + " --input " + in + " --output " + out);
    return code;
  };
  EXPECT_EQ(run("{\"text\": \"b\"}\n", tiny_file), 0);
  EXPECT_EQ(json::parse(read(out))["ids"], json({68}));
  EXPECT_EQ(run("{\"text\": \"b\"}\n{", data_dir + "tiny"), 5);
  EXPECT_EQ(run("", "/nowhere"), 2);
}

} // namespace
} // namespace di::launch
