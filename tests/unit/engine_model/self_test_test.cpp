// SPDX-License-Identifier: Apache-2.0
// The digest that a rank shows before it may join.
#include "engine/model/self_test.hpp"
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

TEST(self_test, is_the_same_whenever_and_with_however_many_threads_it_is_made) {
  const std::shared_ptr<const loaded_model> demo = testing::load_model(testing::demo_checkpoint());
  const std::string proof = self_test(demo, 1).value();
  EXPECT_EQ(proof.size(), 16U);
  EXPECT_EQ(self_test(demo, 2).value(), proof);
  EXPECT_EQ(self_test(testing::load_model(testing::demo_checkpoint()), 1).value(), proof);
}

TEST(self_test, tells_weights_apart) {
  const std::shared_ptr<const loaded_model> tiny =
      testing::load_model(testing::preset_checkpoint("tiny"));
  const std::shared_ptr<const loaded_model> demo = testing::load_model(testing::demo_checkpoint());
  EXPECT_NE(self_test(tiny, 1).value(), self_test(demo, 1).value());
}

} // namespace
} // namespace di::engine
