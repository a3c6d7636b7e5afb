// SPDX-License-Identifier: Apache-2.0
// What a contract id names.
#include "engine/model/checkpoint.hpp"
#include "engine/model/contract.hpp"
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

TEST(contract, names_kernels_device_weights_and_rope_tables) {
  const auto demo = testing::load_model(testing::demo_checkpoint());
  const std::string id = contract_id(*demo);
  EXPECT_TRUE(id.starts_with("kernels-1/cpu/")) << id;
  EXPECT_NE(id.find(demo->files().hash()), std::string::npos) << id;
  EXPECT_NE(id.find("/rope-"), std::string::npos) << id;
  EXPECT_EQ(id, contract_id(*testing::load_model(testing::demo_checkpoint())));
}

TEST(contract, tells_models_apart) {
  const auto tiny = testing::load_model(testing::preset_checkpoint("tiny"));
  const auto demo = testing::load_model(testing::demo_checkpoint());
  EXPECT_NE(contract_id(*tiny), contract_id(*demo));
}

} // namespace
} // namespace di::engine
