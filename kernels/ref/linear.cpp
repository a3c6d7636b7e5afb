// SPDX-License-Identifier: Apache-2.0
// Reference of `linear`: dequantise both operands, one fused multiply-add per element, 16 lanes.
#include "kernels/ref/ref.hpp"

namespace di::kernels::ref {
namespace {

float weight_value(const weight& w, std::int64_t n, std::int64_t k) {
  const std::int64_t groups = (w.in + 31) / 32;
  switch (w.kind) {
  case weight_kind::f32:
    return static_cast<const float*>(w.data)[n * w.in + k];
  case weight_kind::bf16:
    return bf16_to_f32(static_cast<const bf16*>(w.data)[n * w.in + k]);
  case weight_kind::fp8_tile32:
    return e4m3_weight_to_f32(static_cast<const std::uint8_t*>(w.data)[n * w.in + k])
           * e8m0_to_f32(w.scale[(n / 32) * groups + k / 32]);
  case weight_kind::fp8_row32:
    return e4m3_weight_to_f32(static_cast<const std::uint8_t*>(w.data)[n * w.in + k])
           * e8m0_to_f32(w.scale[n * groups + k / 32]);
  case weight_kind::fp4_row32: {
    const std::uint8_t byte = static_cast<const std::uint8_t*>(w.data)[n * (w.in / 2) + k / 2];
    const auto code = static_cast<std::uint8_t>(k % 2 == 0 ? byte & 15U : byte >> 4);
    return e2m1_to_f32(code) * e8m0_to_f32(w.scale[n * groups + k / 32]);
  }
  }
  return 0;
}

float input_value(const linear_job& j, std::int64_t m, std::int64_t k) {
  switch (j.x_kind) {
  case input_kind::f32:
    return static_cast<const float*>(j.x)[m * j.x_stride + k];
  case input_kind::bf16:
    return bf16_to_f32(static_cast<const bf16*>(j.x)[m * j.x_stride + k]);
  case input_kind::fp8:
    return e4m3_to_f32(static_cast<const std::uint8_t*>(j.x)[m * j.x_stride + k])
           * e8m0_to_f32(j.x_scale[m * j.x_scale_stride + k / 32]);
  }
  return 0;
}

/// The k of step s: ascending, but in each 32 of an fp4 row the even ones first.
std::int64_t element_of_step(weight_kind kind, std::int64_t s) {
  if (kind != weight_kind::fp4_row32)
    return s;
  const std::int64_t in_group = s % 32;
  return s - in_group + (in_group < 16 ? 2 * in_group : 2 * (in_group - 16) + 1);
}

void run_job(const linear_job& j) {
  const std::int64_t padded = (j.w.in + lane_count - 1) / lane_count * lane_count;
  for (std::int64_t m = 0; m < j.rows; ++m) {
    for (std::int64_t n = 0; n < j.w.out; ++n) {
      lanes sum;
      for (std::int64_t s = 0; s < padded; ++s) {
        const std::int64_t k = element_of_step(j.w.kind, s);
        const bool real = k < j.w.in;
        sum.add_product(s, real ? input_value(j, m, k) : 0.0F,
                        real ? weight_value(j.w, n, k) : 0.0F);
      }
      const std::int64_t at = m * j.y_stride + n;
      if (j.y_f32)
        static_cast<float*>(j.y)[at] = sum.sum();
      else
        static_cast<bf16*>(j.y)[at] = f32_to_bf16(sum.sum());
    }
  }
}

} // namespace

status linear(stream&, std::span<const linear_job> jobs) {
  if (const status s = check_linear(jobs); s != status::ok)
    return s;
  const fp_control_guard fp;
  for (const linear_job& j : jobs)
    run_job(j);
  return status::ok;
}

} // namespace di::kernels::ref
