// SPDX-License-Identifier: Apache-2.0
// The text model against the reference on the tiny checkpoint: layer by layer with stored inputs,
// and end to end. Tolerances are those of the golden vectors' README.
#include "engine/model/verify.hpp"
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

const std::string golden_dir = std::string{DI_SOURCE_DIR} + "/tests/golden/data/model/";

class model_golden : public ::testing::Test {
protected:
  static void SetUpTestSuite() {
    model = di::testing::load_model(di::testing::preset_checkpoint("tiny"));
    logits = std::make_unique<golden_vectors>(open("tiny.logits.safetensors"));
  }
  static void TearDownTestSuite() {
    model.reset();
    logits.reset();
  }
  static golden_vectors open(const std::string& file) {
    auto golden = golden_vectors::open(golden_dir + file);
    if (!golden.ok())
      throw std::runtime_error(golden.error().render());
    return std::move(*golden);
  }
  static void expect_clean(const verify_report& report) {
    for (const std::string& line : report.summaries)
      std::printf("%s\n", line.c_str());
    for (const std::string& line : report.failures)
      ADD_FAILURE() << line;
    EXPECT_EQ(report.failures_total, 0u);
  }
  verify_report layers(const std::string& prompt, const verify_limits& limits = {}) {
    verify_report report;
    const auto done = verify_layers(
        {*model, kernels::best_cpu_ops(), *stream}, open("tiny.layers." + prompt + ".safetensors"),
        logits->elements<std::int32_t>(prompt + ".tokens"),
        logits->elements<std::int32_t>(prompt + ".greedy"), report, limits);
    EXPECT_TRUE(done.ok()) << done.error().render();
    return report;
  }

  static std::unique_ptr<loaded_model> model;
  static std::unique_ptr<golden_vectors> logits;
  std::unique_ptr<kernels::stream> stream = kernels::make_cpu_stream(1);
};

std::unique_ptr<loaded_model> model_golden::model;
std::unique_ptr<golden_vectors> model_golden::logits;

TEST_F(model_golden, every_operation_of_every_layer_agrees_on_forty_tokens) {
  const verify_report report = layers("len40");
  expect_clean(report);
  EXPECT_GT(report.tensors, 500u);
}

TEST_F(model_golden, selections_agree_where_candidates_are_dropped) {
  const verify_report report = layers("len150");
  expect_clean(report);
  EXPECT_GT(report.tensors, 90u);
}

TEST_F(model_golden, a_tighter_tolerance_names_layer_tensor_and_coordinate) {
  verify_limits limits;
  limits.coefficients.relative = 0; // nobody sums in exactly the reference's order
  const verify_report report = layers("len40", limits);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.failures.front().find("tiny.layers.len40.safetensors: L"), std::string::npos);
  EXPECT_NE(report.failures.front().find("first at row"), std::string::npos);
  EXPECT_NE(report.failures.front().find("% of the tolerance"), std::string::npos);
}

TEST_F(model_golden, logits_and_greedy_tokens_agree_end_to_end) {
  verify_report report;
  const auto done = verify_logits({*model, kernels::best_cpu_ops(), *stream}, *logits, report);
  ASSERT_TRUE(done.ok()) << done.error().render();
  expect_clean(report);
  EXPECT_GT(report.rows, 600u);
  EXPECT_EQ(report.steps, 432u);
}

TEST_F(model_golden, a_folder_is_checked_as_a_whole) {
  const auto missing =
      verify_golden({*model, kernels::best_cpu_ops(), *stream}, golden_dir + "nothing");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ec::not_found);
}

} // namespace
} // namespace di::engine
