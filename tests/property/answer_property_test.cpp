// SPDX-License-Identifier: Apache-2.0
// What holds for every model output, however it is cut: random ones, and the stored ones of the
// recipe.
#include "tests/support/answer_cases.hpp"
#include "tests/support/recipe_streams.hpp"

#include <gtest/gtest.h>

#include <random>

namespace di::engine::testing {
namespace {

const tokenizer& tiny() {
  static const tokenizer words =
      tokenizer::load(DI_SOURCE_DIR "/tests/golden/data/tokenizer/tiny/tokenizer.json").value();
  return words;
}

TEST(answer_property, joined_deltas_are_the_whole_answer_at_every_cut) {
  std::mt19937_64 random{7};
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::size_t calls = 0;
  for (int i = 0; i < 6000; ++i) {
    const answer_case c = make_answer_case(below);
    const std::string broken = broken_rule(c, tiny(), below);
    ASSERT_EQ(broken, "") << i << ": " << c.text;
    calls += c.text.find("invoke") != std::string::npos;
  }
  EXPECT_GT(calls, 1000U);
}

TEST(answer_property, stored_outputs_give_one_answer_at_all_their_cuts) {
  std::mt19937_64 random{3};
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (const char* family : {"chat", "responses", "messages"})
    for (const json& row : stream_rows(family)) {
      if (!row["text"].is_string())
        continue;
      answer_case c;
      c.recipe = recipe_of(row, false);
      c.text = row["text"].get<std::string>();
      c.why = row["finish"].is_null() ? answer_end::stop : end_of(row["finish"]);
      ASSERT_EQ(broken_rule(c, tiny(), below), "") << row["id"] << ' ' << c.text;
      for (const json& run : row["runs"]) {
        if (!run["chunks"].empty() && !run["chunks"][0].is_string())
          continue; // ids of another tokenizer
        const auto recipe = std::make_shared<const answer_recipe>(c.recipe);
        answer_stream whole{recipe, &tiny()};
        answer_stream cut{recipe, &tiny()};
        stream_text(whole, {c.text}, c.why);
        stream_text(cut, run["chunks"].get<std::vector<std::string>>(), c.why);
        ASSERT_EQ(without_usage(whole.final()), without_usage(cut.final())) << row["id"];
      }
    }
}

} // namespace
} // namespace di::engine::testing
