// SPDX-License-Identifier: Apache-2.0
// Shape checks at the door, shared by all implementations: nothing is read before they pass.
#pragma once

#include "kernels/kernels.hpp"

namespace di::kernels {

status check_linear(std::span<const linear_job>);
/// rows, dim >= 0, dim a multiple of `multiple`, strides at least dim when there is a second row.
status check_rows(std::int64_t rows, std::int64_t dim, std::int64_t multiple, std::int64_t x_stride,
                  std::int64_t y_stride);
status check_packed(row_format, std::int64_t rows, std::int64_t dim);
status check_rope(std::int64_t rows, std::int64_t heads, std::int64_t dim, const rope_table&);
/// Reads the counts of the rows too: 0 <= window_count <= total_count <= kv_stride.
status check_attention(const attention_args&);
status check_index_scores(const index_score_args&);
/// streams in [1, max_streams]
status check_streams(std::int64_t rows, std::int64_t streams, std::int64_t dim);
status check_route(std::int64_t rows, std::int64_t experts, std::int64_t k);
/// All sizes >= 0.
status check_sizes(std::int64_t a, std::int64_t b, std::int64_t c = 0);

inline constexpr std::int64_t max_streams = 8;
inline constexpr std::int64_t max_routed = 64; ///< k of `route`

/// Sets the floating-point control register of this thread to round-to-nearest without
/// flush-to-zero for its lifetime, then puts the caller's back.
class fp_control_guard {
public:
  fp_control_guard() noexcept;
  ~fp_control_guard();
  fp_control_guard(const fp_control_guard&) = delete;
  fp_control_guard& operator=(const fp_control_guard&) = delete;

private:
  unsigned saved_;
};

} // namespace di::kernels
