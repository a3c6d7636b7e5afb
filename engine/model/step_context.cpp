// SPDX-License-Identifier: Apache-2.0
// Small wrappers around the kernels that the parts of a step use.
#include "engine/model/step_context.hpp"

namespace di::engine {

result<void> check_op(kernels::status status, std::string_view operation) {
  switch (status) {
  case kernels::status::ok:
    return {};
  case kernels::status::bad_shape:
    return fail(ec::bad_shape, "kernel {} refuses the shape of this model", operation);
  case kernels::status::unsupported:
    return fail(ec::bad_shape, "kernel {} does not exist in this implementation", operation);
  }
  DI_UNREACHABLE();
}

result<void> quantise(step_context& step, const bf16* x, std::int64_t stride, std::int64_t rows,
                      std::int64_t width, quantised_rows& out) {
  out.rows = rows;
  out.width = width;
  return check_op(step.ops.act_quant(step.stream, x, stride, rows, width,
                                     out.codes.ensure(rows * width), width,
                                     out.scales.ensure(rows * (width / 32)), width / 32),
                  "act_quant");
}

kernels::linear_job linear(const kernels::weight& w, const quantised_rows& x, bf16* y) {
  kernels::linear_job job;
  job.w = w;
  job.x_kind = kernels::input_kind::fp8;
  job.x = x.codes.data();
  job.x_scale = x.scales.data();
  job.x_stride = x.width;
  job.x_scale_stride = x.width / 32;
  job.rows = x.rows;
  job.y = y;
  job.y_stride = w.out;
  return job;
}

kernels::linear_job linear(const kernels::weight& w, const bf16* x, std::int64_t rows, bf16* y) {
  kernels::linear_job job;
  job.w = w;
  job.x_kind = kernels::input_kind::bf16;
  job.x = x;
  job.x_stride = w.in;
  job.rows = rows;
  job.y = y;
  job.y_stride = w.out;
  return job;
}

kernels::linear_job linear(const kernels::weight& w, const bf16* x, std::int64_t rows, float* y) {
  kernels::linear_job job = linear(w, x, rows, static_cast<bf16*>(nullptr));
  job.y = y;
  job.y_f32 = true;
  return job;
}

result<void> run_linears(step_context& step, std::span<const kernels::linear_job> jobs) {
  return check_op(step.ops.linear(step.stream, jobs), "linear");
}

result<void> normalise(step_context& step, const bf16* x, const bf16* weight, std::int64_t rows,
                       std::int64_t dim, bf16* y) {
  return check_op(step.ops.rms_norm(step.stream, x, dim, weight,
                                    static_cast<float>(step.spec.rms_norm_eps), rows, dim, y, dim),
                  "rms_norm");
}

} // namespace di::engine
