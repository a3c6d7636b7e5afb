// SPDX-License-Identifier: Apache-2.0
// What the parts of one step share: the rows, the operations, buffers that only grow, small
// wrappers around the kernels. Private to engine/model.
#pragma once

#include "engine/model/loaded_model.hpp"
#include "engine/model/sequence_state.hpp"
#include "engine/model/step.hpp"
#include "engine/model/step_probe.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string_view>
#include <vector>

namespace di::engine {

/// Uninitialised memory, aligned to 64 bytes, that only grows: no allocation once a step of that
/// size has run.
template <class T>
class buffer {
public:
  buffer() = default;
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  ~buffer() { ::operator delete (data_, std::align_val_t{64}); }

  /// At least `count` elements; content is lost when it grows.
  T* ensure(std::int64_t count) {
    auto wanted = static_cast<std::size_t>(count);
    if (wanted > capacity_) {
      wanted = std::max(wanted, capacity_ + capacity_ / 2); // contexts grow by one entry a step
      ::operator delete (data_, std::align_val_t{64});
      data_ = nullptr;
      data_ = static_cast<T*>(::operator new (wanted * sizeof(T), std::align_val_t{64}));
      capacity_ = wanted;
    }
    return data_;
  }
  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }

private:
  T* data_ = nullptr;
  std::size_t capacity_ = 0;
};

/// One segment of the running step.
struct segment_rows {
  sequence_state* sequence = nullptr;
  std::int64_t first_row = 0, rows = 0; ///< within the step; rows below a floor leave on the way
  std::int64_t first_position = 0;      ///< of the first row
  std::int64_t start_position = 0;      ///< of the first token; == the sequence's length
  std::span<const token_id> tokens;     ///< all of the segment, also of rows that have left
  logits_wanted logits = logits_wanted::last;

  std::int64_t end_position() const noexcept { return first_position + rows; }
  /// Token at a position of the history or of this segment.
  token_id token_at(std::int64_t position) const noexcept {
    return position < start_position ? sequence->tokens()[static_cast<std::size_t>(position)]
                                     : tokens[static_cast<std::size_t>(position - start_position)];
  }
};

/// Rows quantised for fp8 and fp4 linears.
struct quantised_rows {
  buffer<std::uint8_t> codes;  ///< [rows, width]
  buffer<std::uint8_t> scales; ///< [rows, width / 32]
  std::int64_t rows = 0, width = 0;
};

struct step_context {
  step_context(const loaded_model& m, const kernels::op_table& o, kernels::stream& s)
      : model{m}, spec{m.spec()}, ops{o}, stream{s} {}

  const loaded_model& model;
  const model_spec& spec;
  const kernels::op_table& ops;
  kernels::stream& stream;
  step_probe* probe = nullptr;

  std::vector<segment_rows> segments;
  std::int64_t rows = 0;
  buffer<std::int32_t> positions; ///< [rows]

  void visit(std::int64_t layer, std::string_view name, bf16* data, std::int64_t width) const {
    if (probe != nullptr)
      probe->visit({layer, name, probe_type::bfloat16, data, rows, width});
  }
  void visit(std::int64_t layer, std::string_view name, float* data, std::int64_t width) const {
    if (probe != nullptr)
      probe->visit({layer, name, probe_type::float32, data, rows, width});
  }
  void visit(std::int64_t layer, std::string_view name, std::int32_t* data,
             std::int64_t width) const {
    if (probe != nullptr)
      probe->visit({layer, name, probe_type::int32, data, rows, width});
  }
  void visit(const probe_tensor& tensor) const {
    if (probe != nullptr)
      probe->visit(tensor);
  }
};

/// A kernel's status as a result. @errors ec::bad_shape
result<void> check_op(kernels::status status, std::string_view operation);

/// out = act_quant(x); x bf16 [rows, width] with `stride` elements between rows.
result<void> quantise(step_context& step, const bf16* x, std::int64_t stride, std::int64_t rows,
                      std::int64_t width, quantised_rows& out);

/// y = w x for quantised rows; y [rows, w.out] bf16.
kernels::linear_job linear(const kernels::weight& w, const quantised_rows& x, bf16* y);
/// y = w x for bf16 rows; y [rows, w.out] bf16 or float.
kernels::linear_job linear(const kernels::weight& w, const bf16* x, std::int64_t rows, bf16* y);
kernels::linear_job linear(const kernels::weight& w, const bf16* x, std::int64_t rows, float* y);

/// Runs the jobs as one parallel region.
result<void> run_linears(step_context& step, std::span<const kernels::linear_job> jobs);

/// y = RMSNorm(x; weight), dense rows; eps is the model's.
result<void> normalise(step_context& step, const bf16* x, const bf16* weight, std::int64_t rows,
                       std::int64_t dim, bf16* y);

} // namespace di::engine
