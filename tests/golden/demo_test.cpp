// SPDX-License-Identifier: Apache-2.0
// The demo model reproduces its stored greedy answers wherever the margin is clear.
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

namespace di::engine {
namespace {

constexpr double margin_clear = 0.75; // golden/model/README.md

TEST(demo_model, gives_its_golden_answers_wherever_the_margin_is_clear) {
  const auto model = di::testing::load_model(di::testing::demo_checkpoint());
  di::testing::test_engine engine{*model, 2};
  const auto vocab = static_cast<std::size_t>(model->spec().vocab_size);
  std::ifstream file{di::testing::demo_checkpoint() + "/golden.json"};
  const auto golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden.at("cases").size(), 45u);
  std::size_t steps = 0;
  std::size_t agreed_freely = 0;
  for (const auto& c : golden.at("cases")) {
    const auto prompt = c.at("prompt_ids").get<std::vector<token_id>>();
    const auto tokens = c.at("tokens").get<std::vector<token_id>>();
    const auto margin = c.at("margin").get<std::vector<double>>();
    SCOPED_TRACE(c.at("category").get<std::string>() + ": " + c.at("text").get<std::string>());
    // Teacher forcing: the whole conversation in one chunk; row k predicts token k.
    std::vector<token_id> forced{prompt};
    forced.insert(forced.end(), tokens.begin(), tokens.end() - 1);
    const auto sequence = engine.sequence();
    const std::vector<float> logits = engine.run(*sequence, forced);
    bool free = true;
    for (std::size_t k = 0; k < tokens.size(); ++k) {
      const auto row =
          logits.begin() + static_cast<std::ptrdiff_t>((prompt.size() - 1 + k) * vocab);
      const auto pick = static_cast<token_id>(
          std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab)) - row);
      ++steps;
      if (pick == tokens[k])
        continue;
      free = false;
      EXPECT_LE(margin[k], margin_clear)
          << "step " << k << " picks " << pick << ", expected " << tokens[k];
    }
    agreed_freely += free ? 1 : 0;
  }
  EXPECT_EQ(steps, 874u);
  std::printf("%zu of 45 answers agree in every step\n", agreed_freely);
  EXPECT_GE(agreed_freely, 43u);
}

} // namespace
} // namespace di::engine
