// SPDX-License-Identifier: Apache-2.0
// The arithmetic of CUDA activation quantisation, one lane of a warp at a time: the same code runs
// in the kernel and, lane after lane, on the host, where a test compares its bits with the CPU's.
#pragma once

#include "kernels/formats.hpp"

namespace di::kernels::cuda {

inline constexpr int warp_lanes = 32; ///< one warp = one group of 32 values

/// The magnitude a lane brings to the group's maximum; NaN counts as the floor.
DI_KERNEL_INLINE float lane_magnitude(std::uint16_t x) {
  const float v = bf16_to_f32(x);
  const float a = v < 0 ? -v : v;
  return a > act_floor ? a : act_floor;
}

/// Joins the maxima of two lanes. @pre neither is NaN
DI_KERNEL_INLINE float joined(float a, float b) {
  return a > b ? a : b;
}

DI_KERNEL_INLINE std::uint8_t group_scale(float maximum) {
  return e8m0_scale(maximum, inverse_448);
}

DI_KERNEL_INLINE std::uint8_t lane_code(std::uint16_t x, std::uint8_t scale) {
  return f32_to_e4m3(bf16_to_f32(x) * e8m0_inverse(scale));
}

} // namespace di::kernels::cuda
