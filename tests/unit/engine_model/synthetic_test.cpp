// SPDX-License-Identifier: Apache-2.0
#include "engine/model/synthetic.hpp"
#include "engine/model/synthetic_values.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

TEST(synthetic_values, start_as_the_specification_says) {
  const auto stream = synthetic_stream(1, "embed.weight");
  EXPECT_EQ(stream, 0xc71602e57be34d86ULL);
  EXPECT_EQ(synthetic_draw(stream, 0), 0x29e933ab31c416a0ULL);
  EXPECT_EQ(synthetic_draw(stream, 2), 0x44d04163e74adc1dULL);
}

TEST(synthetic, knows_the_totals_of_the_presets) {
  const auto plan = [](const char* name) {
    synthetic_options o;
    o.config_text = std::string{preset_config(name).value()};
    return plan_synthetic(o).value();
  };
  const auto tiny = plan("tiny");
  EXPECT_EQ(tiny.tensors, 1212);
  EXPECT_EQ(tiny.parameters, 18825292);
  EXPECT_EQ(tiny.data_bytes, 14413498U);
  const auto real = plan("real");
  EXPECT_EQ(real.tensors, 96085);
  EXPECT_NEAR(static_cast<double>(real.data_bytes) / (1ULL << 30), 475.241, 0.0005);
  EXPECT_EQ(preset_config("huge"), std::nullopt);
}

} // namespace
} // namespace di::engine
