// SPDX-License-Identifier: Apache-2.0
// Shape checks at the door and the floating-point control register.
#include "kernels/check.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace di::kernels {
namespace {

status verdict(bool good) {
  return good ? status::ok : status::bad_shape;
}

std::int64_t group_of(weight_kind k) {
  return k == weight_kind::f32 || k == weight_kind::bf16 ? 1 : 32;
}

std::int64_t group_of(row_format f) {
  return f == row_format::plain ? 1 : (f == row_format::fp4_16 ? 16 : 32);
}

bool good_job(const linear_job& j) {
  if (j.rows < 0 || j.w.out < 0 || j.w.in < 1 || j.w.in % group_of(j.w.kind) != 0)
    return false;
  if (j.rows == 0 || j.w.out == 0)
    return true;
  if (j.w.data == nullptr || j.x == nullptr || j.y == nullptr)
    return false;
  if (group_of(j.w.kind) == 32 && j.w.scale == nullptr)
    return false;
  if (j.x_kind == input_kind::fp8
      && (j.x_scale == nullptr || j.w.in % 32 != 0
          || (j.rows > 1 && j.x_scale_stride < j.w.in / 32)))
    return false;
  return j.rows == 1 || (j.x_stride >= j.w.in && j.y_stride >= j.w.out);
}

} // namespace

status check_linear(std::span<const linear_job> jobs) {
  for (const linear_job& j : jobs)
    if (!good_job(j))
      return status::bad_shape;
  return status::ok;
}

status check_rows(std::int64_t rows, std::int64_t dim, std::int64_t multiple, std::int64_t x_stride,
                  std::int64_t y_stride) {
  return verdict(rows >= 0 && dim >= 1 && dim % multiple == 0
                 && (rows <= 1 || (x_stride >= dim && y_stride >= dim)));
}

status check_packed(row_format f, std::int64_t rows, std::int64_t dim) {
  return verdict(rows >= 0 && dim >= 1 && dim % group_of(f) == 0);
}

status check_rope(std::int64_t rows, std::int64_t heads, std::int64_t dim, const rope_table& t) {
  return verdict(rows >= 0 && heads >= 0 && dim >= 1 && t.rope_dim >= 0 && t.rope_dim % 2 == 0
                 && t.rope_dim <= dim && (t.rope_dim == 0 || t.freq != nullptr));
}

status check_attention(const attention_args& a) {
  if (a.rows < 0 || a.heads < 0 || a.dim < 1 || a.dim % 32 != 0 || a.kv_stride < 0)
    return status::bad_shape;
  if (a.rows == 0 || a.heads == 0)
    return status::ok;
  if (a.q == nullptr || a.out == nullptr || a.sink == nullptr || a.window_count == nullptr
      || a.total_count == nullptr || (a.kv == nullptr && a.kv_stride > 0))
    return status::bad_shape;
  for (std::int64_t r = 0; r < a.rows; ++r)
    if (a.window_count[r] < 0 || a.window_count[r] > a.total_count[r]
        || a.total_count[r] > a.kv_stride)
      return status::bad_shape;
  return status::ok;
}

status check_index_scores(const index_score_args& a) {
  if (a.rows < 0 || a.heads < 0 || a.dim < 1 || a.dim % 32 != 0 || a.score_stride < 0
      || a.page_entries < 1)
    return status::bad_shape;
  if (a.rows == 0)
    return status::ok;
  if (a.visible == nullptr || a.scores == nullptr
      || (a.heads > 0 && (a.q == nullptr || a.weights == nullptr)))
    return status::bad_shape;
  for (std::int64_t r = 0; r < a.rows; ++r)
    if (a.visible[r] < 0 || a.visible[r] > a.score_stride
        || (a.visible[r] > 0 && a.key_pages == nullptr))
      return status::bad_shape;
  return status::ok;
}

status check_streams(std::int64_t rows, std::int64_t streams, std::int64_t dim) {
  return verdict(rows >= 0 && streams >= 1 && streams <= max_streams && dim >= 1);
}

status check_route(std::int64_t rows, std::int64_t experts, std::int64_t k) {
  return verdict(rows >= 0 && experts >= 1 && k >= 0 && k <= experts && k <= max_routed);
}

status check_sizes(std::int64_t a, std::int64_t b, std::int64_t c) {
  return verdict(a >= 0 && b >= 0 && c >= 0);
}

#if defined(__x86_64__)

fp_control_guard::fp_control_guard() noexcept : saved_(_mm_getcsr()) {
  _mm_setcsr(0x1f80);
}

fp_control_guard::~fp_control_guard() {
  _mm_setcsr(saved_);
}

#else

fp_control_guard::fp_control_guard() noexcept : saved_(0) {
}

fp_control_guard::~fp_control_guard() = default;

#endif

} // namespace di::kernels
