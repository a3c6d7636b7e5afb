// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kernel_tables.hpp"

#include <gtest/gtest.h>

#include <string>

namespace di::kernels {
namespace {

class kernel_shapes : public ::testing::TestWithParam<const op_table*> {
protected:
  const op_table& ops = *GetParam();
  std::unique_ptr<stream> s = make_cpu_stream(1);
};

TEST_P(kernel_shapes, linear_refuses_bad_jobs_before_touching_memory) {
  float cell = 7;
  std::uint8_t byte = 0;
  linear_job good;
  good.w = {weight_kind::f32, &cell, nullptr, 1, 1};
  good.x_kind = input_kind::f32;
  good.x = &cell;
  good.x_stride = 1;
  good.rows = 1;
  good.y = &cell;
  good.y_f32 = true;
  good.y_stride = 1;
  const auto refused = [&](auto change) {
    linear_job j = good;
    change(j);
    const std::vector<linear_job> jobs{good, j};
    return ops.linear(*s, jobs) == status::bad_shape && cell == 7;
  };
  EXPECT_TRUE(refused([](linear_job& j) { j.rows = -1; }));
  EXPECT_TRUE(refused([](linear_job& j) { j.w.in = 0; }));
  EXPECT_TRUE(refused([](linear_job& j) { j.w.out = -3; }));
  EXPECT_TRUE(refused([](linear_job& j) { j.x = nullptr; }));
  EXPECT_TRUE(refused([](linear_job& j) { j.y = nullptr; }));
  EXPECT_TRUE(refused([](linear_job& j) { j.w.data = nullptr; }));
  EXPECT_TRUE(refused([&](linear_job& j) { // scales missing
    j.w = {weight_kind::fp4_row32, &byte, nullptr, 1, 32};
    j.x_stride = 32;
  }));
  EXPECT_TRUE(refused([&](linear_job& j) {
    j.w = {weight_kind::fp8_tile32, &byte, &byte, 1, 33};
  }));
  EXPECT_TRUE(refused([](linear_job& j) { // rows would overlap
    j.rows = 2;
    j.x_stride = 0;
  }));
  EXPECT_TRUE(refused([](linear_job& j) { j.x_kind = input_kind::fp8; }));
  EXPECT_EQ(ops.linear(*s, {}), status::ok) << "no job is no error";
}

TEST_P(kernel_shapes, widths_that_a_format_cannot_hold_are_refused) {
  bf16 x[64] = {};
  std::uint8_t codes[64] = {}, scales[8] = {};
  std::byte* out = reinterpret_cast<std::byte*>(codes);
  EXPECT_EQ(ops.act_quant(*s, x, 48, 1, 48, codes, 48, scales, 2), status::bad_shape);
  EXPECT_EQ(ops.pack_rows(*s, row_format::fp8_32, x, 48, 1, 48, &out), status::bad_shape);
  EXPECT_EQ(ops.pack_rows(*s, row_format::fp4_16, x, 24, 1, 24, &out), status::bad_shape);
  EXPECT_EQ(ops.pack_rows(*s, row_format::fp4_16, x, 48, 1, 48, &out), status::ok);
  const float freq[8] = {};
  const std::int32_t position = 0;
  EXPECT_EQ(ops.rope(*s, x, 1, 1, 8, &position, {freq, 10}, false), status::bad_shape);
  EXPECT_EQ(ops.rope(*s, x, 1, 1, 8, &position, {freq, 7}, false), status::bad_shape);
}

TEST_P(kernel_shapes, attention_lists_longer_than_their_stride_are_refused) {
  bf16 x[64] = {}, out[64];
  const std::byte* list[4] = {};
  const float sink = 0;
  const std::int32_t window = 2, total = 5;
  attention_args a;
  a.q = x;
  a.rows = 1;
  a.heads = 1;
  a.dim = 64;
  a.kv = list;
  a.kv_stride = 4;
  a.window_count = &window;
  a.total_count = &total;
  a.sink = &sink;
  a.scale = 1;
  a.out = out;
  EXPECT_EQ(ops.attention(*s, a), status::bad_shape);
  a.kv_stride = 5;
  a.dim = 20;
  EXPECT_EQ(ops.attention(*s, a), status::bad_shape);
}

TEST_P(kernel_shapes, router_refuses_more_picks_than_experts) {
  float logits[4] = {}, bias[4] = {}, weights[8];
  std::int32_t ids[8];
  EXPECT_EQ(ops.route(*s, logits, bias, 1, 4, 5, 1, 1, ids, weights), status::bad_shape);
  EXPECT_EQ(ops.route(*s, logits, bias, 1, 4, 4, 1, 1, ids, weights), status::ok);
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(ids[3], 3) << "equal scores: lower ids first";
}

TEST_P(kernel_shapes, no_rows_are_no_work) {
  EXPECT_EQ(ops.rms_norm(*s, nullptr, 8, nullptr, 1, 0, 8, nullptr, 8), status::ok);
  EXPECT_EQ(ops.hc_mix(*s, nullptr, 0, 4, 8, nullptr, nullptr, nullptr, 20, 0, 0, nullptr, nullptr,
                       nullptr),
            status::ok);
  EXPECT_EQ(ops.swiglu(*s, nullptr, nullptr, nullptr, 1, 0, 8, nullptr), status::ok);
  EXPECT_EQ(ops.attention(*s,
                          [] {
                            attention_args a;
                            a.dim = 64;
                            return a;
                          }()),
            status::ok);
}

INSTANTIATE_TEST_SUITE_P(every_implementation, kernel_shapes, ::testing::ValuesIn(all_tables()),
                         [](const auto& p) { return std::string(p.param->name); });

} // namespace
} // namespace di::kernels
