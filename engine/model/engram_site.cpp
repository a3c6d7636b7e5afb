// SPDX-License-Identifier: Apache-2.0
// Engram: hash, gather, project, gate.
#include "engine/model/engram_site.hpp"

#include <array>
#include <cstring>

namespace di::engine {

void engram_site::row_ids(const loaded_model& model, std::size_t engram_index,
                          const segment_rows& segment, std::int64_t position, std::int32_t* ids) {
  const model_spec& spec = model.spec();
  const auto layer = static_cast<std::size_t>(spec.engram_layer_ids[engram_index]);
  const auto& offsets = model.layers()[layer].engram->row_offsets;
  const auto& multipliers = spec.engram.multipliers[engram_index];
  const auto classes = model.engram_classes();
  const std::int32_t pad = classes[static_cast<std::size_t>(spec.engram_pad_token_id)];

  std::int64_t hash = 0;
  std::size_t column = 0;
  for (std::int64_t back = 0; back < spec.engram_max_ngram_size; ++back) {
    const std::int32_t c =
        position - back < 0 ? pad
                            : classes[static_cast<std::size_t>(segment.token_at(position - back))];
    // Multipliers are bounded so that the product stays below 2^63 (spec of the checkpoint, 5).
    hash ^= static_cast<std::int64_t>(c) * multipliers[static_cast<std::size_t>(back)];
    if (back == 0)
      continue;
    for (const std::int64_t prime :
         spec.engram.primes[engram_index][static_cast<std::size_t>(back - 1)]) {
      ids[column] = static_cast<std::int32_t>(hash % prime + offsets[column]);
      ++column;
    }
  }
}

result<void> engram_site::gather(step_context& step, const engram_weights& weights) {
  const model_spec& spec = step.spec;
  const std::int64_t dim = spec.engram_head_dim;
  const std::int64_t count = step.rows * spec.engram_columns();
  const std::int64_t row_bytes = kernels::row_bytes(kernels::row_format::fp8_32, dim);
  std::byte* packed = packed_.ensure(count * row_bytes);
  const std::byte** pointers = pointers_.ensure(count);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t id = ids_.data()[i];
    std::byte* row = packed + i * row_bytes;
    std::memcpy(row, weights.table + id * dim, static_cast<std::size_t>(dim));
    std::memcpy(row + dim, weights.table_scale + id * (dim / 32),
                static_cast<std::size_t>(dim / 32));
    pointers[i] = row;
  }
  return check_op(step.ops.unpack_rows(step.stream, kernels::row_format::fp8_32, pointers, count,
                                       dim, embedding_.ensure(count * dim)),
                  "unpack_rows");
}

result<void> engram_site::run(step_context& step, std::int64_t layer, bf16* x) {
  const model_spec& spec = step.spec;
  const auto index = spec.engram_index(layer);
  if (!index)
    return {};
  const engram_weights& weights = *step.model.layers()[static_cast<std::size_t>(layer)].engram;
  const std::int64_t columns = spec.engram_columns();
  step.visit(layer, "engram_X_in", x, spec.stream_width());
  std::int32_t* ids = ids_.ensure(step.rows * columns);
  for (const segment_rows& segment : step.segments)
    for (std::int64_t r = 0; r < segment.rows; ++r)
      row_ids(step.model, *index, segment, segment.first_position + r,
              ids + (segment.first_row + r) * columns);
  step.visit(layer, "engram_ids", ids, columns);

  DI_TRY_VOID(gather(step, weights));
  const std::int64_t width = spec.engram_width();
  DI_TRY_VOID(quantise(step, embedding_.data(), width, step.rows, width, quantised_));
  bf16* kv = kv_.ensure(step.rows * weights.wkv.out);
  const std::array jobs{linear(weights.wkv, quantised_, kv)};
  DI_TRY_VOID(run_linears(step, jobs));
  DI_TRY_VOID(check_op(step.ops.engram_gate(step.stream, x, kv, weights.q_weight, weights.k_weight,
                                            nullptr, step.rows, spec.hc_mult, spec.hidden_size,
                                            static_cast<float>(spec.rms_norm_eps)),
                       "engram_gate"));
  step.visit(layer, "engram_X_out", x, spec.stream_width());
  return {};
}

} // namespace di::engine
