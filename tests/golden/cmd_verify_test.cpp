// SPDX-License-Identifier: Apache-2.0
// Exit codes of `dilaunch checkpoint verify`.
#include "launch/cmd_verify.hpp"
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

namespace di::launch {
namespace {

const std::string golden_dir = std::string{DI_SOURCE_DIR} + "/tests/golden/data/model";

TEST(checkpoint_verify, agrees_on_the_tiny_checkpoint) {
  EXPECT_EQ(run_checkpoint_verify({di::testing::preset_checkpoint("tiny"), golden_dir, 2}), 0);
}

TEST(checkpoint_verify, says_that_weights_of_another_seed_do_not_agree) {
  engine::synthetic_options options;
  options.config_text = std::string{*engine::preset_config("tiny")};
  options.seed = 2;
  const std::string dir = std::string{DI_BINARY_DIR} + "/test_models/verify_seed2";
  ASSERT_TRUE(engine::write_synthetic(options, dir).ok());
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_checkpoint_verify({dir, golden_dir, 2}), 4);
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(out.find("FAILED"), std::string::npos);
  EXPECT_NE(out.find("L0.router_ids"), std::string::npos) << out;
  EXPECT_NE(out.find("first at row 0, column 0"), std::string::npos) << out;
  EXPECT_NE(out.find("does not agree"), std::string::npos) << out;
}

TEST(checkpoint_verify, refuses_a_folder_without_vectors_and_a_missing_checkpoint) {
  EXPECT_EQ(run_checkpoint_verify({di::testing::preset_checkpoint("tiny"), "/nowhere", 1}), 2);
  EXPECT_EQ(run_checkpoint_verify({"/nowhere", golden_dir, 1}), 2);
}

TEST(checkpoint_verify, refuses_vectors_of_another_model) {
  EXPECT_EQ(run_checkpoint_verify({di::testing::demo_checkpoint(), golden_dir, 1}), 2);
}

} // namespace
} // namespace di::launch
