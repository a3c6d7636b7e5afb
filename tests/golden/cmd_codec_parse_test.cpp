// SPDX-License-Identifier: Apache-2.0
// `dilaunch codec parse`: gives back every stored row of the recipe, requests and all; names what
// it cannot read.
#include "launch/cmd_codec_parse.hpp"
#include "tests/support/recipe_streams.hpp"

#include <gtest/gtest.h>

#include <sstream>

namespace di::launch {
namespace {

using engine::json, engine::tokenizer;

const tokenizer& large() {
  static const tokenizer words =
      tokenizer::load(DI_BINARY_DIR "/tests/golden/tokenizer/tokenizer.json").value();
  return words;
}

TEST(cmd_codec_parse, gives_back_every_stored_row) {
  for (const char* family : {"chat", "responses", "messages"}) {
    std::size_t shown = 0;
    for (const json& row : engine::testing::stream_rows(family)) {
      json bare = row;
      for (json& run : bare["runs"])
        run.erase("events");
      const result<json> out = parse_row(bare, &large(), {true, true});
      ASSERT_TRUE(out.ok()) << row["id"] << ' ' << out.error().render();
      for (const auto& [key, value] : row.items())
        if (out->at(key) != value && ++shown <= 3)
          ADD_FAILURE() << row["id"] << ' ' << key << "\n  expected " << value.dump()
                        << "\n  found    " << out->at(key).dump();
    }
  }
}

TEST(cmd_codec_parse, reads_lines_of_text_and_names_bad_ones) {
  std::istringstream in{
      R"({"request": {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "x"}], "stream": true, "stream_options": {"include_usage": true}}, "text": "why</think>so", "ready": [5, 2]}

{"family": "gopher"}
[]
{"request": {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "x"}]}, "ids": [1]}
)"};
  std::ostringstream out;
  std::ostringstream errors;
  const line_counts counts = parse_lines(nullptr, {}, in, out, errors);
  EXPECT_EQ(counts.done, 1U);
  EXPECT_EQ(counts.failed, 3U);
  const json row = json::parse(out.str());
  EXPECT_EQ(row["final"]["choices"][0]["message"]["content"], "so");
  EXPECT_EQ(row["final"]["choices"][0]["message"]["reasoning_content"], "why");
  EXPECT_EQ(row["events"].back().back()["usage"]["prompt_tokens"], 5);
  EXPECT_NE(errors.str().find("line 3: family"), std::string::npos) << errors.str();
  EXPECT_NE(errors.str().find("line 4: expected an object"), std::string::npos);
  EXPECT_NE(errors.str().find("line 5: chunk of ids: --tokenizer"), std::string::npos)
      << errors.str();
}

} // namespace
} // namespace di::launch
