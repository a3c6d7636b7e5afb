// SPDX-License-Identifier: Apache-2.0
// Compressors of ratio 1 and 2.
#include "engine/model/key_compressor.hpp"

#include <array>
#include <cstring>

namespace di::engine {

void key_compressor::add_jobs(step_context& step, std::int64_t layer, const bf16* normed,
                              std::vector<kernels::linear_job>& jobs) {
  const compressor_weights& w = *step.model.layers()[static_cast<std::size_t>(layer)].compressor;
  const std::int64_t dim = step.spec.head_dim;
  if (step.spec.ratio(layer) == 1) {
    jobs.push_back(linear(w.wkv, normed, step.rows, projected_.ensure(step.rows * dim)));
    return;
  }
  jobs.push_back(linear(w.wkv, normed, step.rows, a_.ensure(step.rows * dim)));
  jobs.push_back(linear(w.wgate, normed, step.rows, g_.ensure(step.rows * dim)));
}

std::int64_t key_compressor::first_entry(const segment_rows& segment, std::int64_t ratio) {
  return std::max(segment.first_position, segment.sequence->floors().write) / ratio;
}

void key_compressor::list_entries(step_context& step, std::int64_t ratio) {
  entries_.clear();
  for (const segment_rows& segment : step.segments)
    for (std::int64_t e = first_entry(segment, ratio); e < segment.end_position() / ratio; ++e) {
      DI_CHECK(segment.sequence->may_write(e * ratio));
      entries_.push_back({segment.sequence, e});
    }
  std::int32_t* positions = entry_positions_.ensure(static_cast<std::int64_t>(entries_.size()));
  for (std::size_t i = 0; i < entries_.size(); ++i)
    positions[i] = static_cast<std::int32_t>(entries_[i].entry * ratio);
}

/// Ratio 1: one row per entry; rows whose entries stay as they are drop out.
void key_compressor::drop_kept_rows(step_context& step) {
  const std::int64_t dim = step.spec.head_dim;
  bf16* to = projected_.data();
  for (const segment_rows& segment : step.segments) {
    const std::int64_t skipped =
        std::min(first_entry(segment, 1) - segment.first_position, segment.rows);
    const std::int64_t count = (segment.rows - skipped) * dim;
    std::memmove(to, projected_.data() + (segment.first_row + skipped) * dim,
                 static_cast<std::size_t>(count) * sizeof(bf16));
    to += count;
  }
}

/// Ratio 2: gathers both halves of every pair, then keeps the halves that later rows may need.
result<void> key_compressor::pool(step_context& step, std::size_t source) {
  const std::int64_t dim = step.spec.head_dim;
  const auto bytes = static_cast<std::size_t>(dim) * sizeof(float);
  const auto pairs = static_cast<std::int64_t>(entries_.size());
  float* pair_a = pair_a_.ensure(pairs * 2 * dim);
  float* pair_g = pair_g_.ensure(pairs * 2 * dim);
  std::int64_t pair = 0;
  for (const segment_rows& segment : step.segments) {
    for (std::int64_t e = first_entry(segment, 2); e < segment.end_position() / 2; ++e, ++pair) {
      for (std::int64_t half = 0; half < 2; ++half) {
        const std::int64_t position = 2 * e + half;
        const std::int64_t at = (pair * 2 + half) * dim;
        if (position < segment.first_position) {
          const float* tail = segment.sequence->tail(source, position);
          std::memcpy(pair_a + at, tail, bytes);
          std::memcpy(pair_g + at, tail + dim, bytes);
        } else {
          const std::int64_t row = segment.first_row + position - segment.first_position;
          std::memcpy(pair_a + at, a_.data() + row * dim, bytes);
          std::memcpy(pair_g + at, g_.data() + row * dim, bytes);
        }
      }
    }
    // Every even position keeps its half: rows that are taken back may reopen the pair.
    const std::int64_t slots = segment.sequence->layout().tail_pairs;
    const std::int64_t oldest =
        std::max(segment.first_position, segment.end_position() - 2 * slots);
    for (std::int64_t position = oldest + oldest % 2; position < segment.end_position();
         position += 2) {
      const std::int64_t row = segment.first_row + position - segment.first_position;
      float* tail = segment.sequence->tail(source, position);
      std::memcpy(tail, a_.data() + row * dim, bytes);
      std::memcpy(tail + dim, g_.data() + row * dim, bytes);
    }
  }
  if (pairs == 0)
    return {};
  return check_op(
      step.ops.pool_pairs(step.stream, pair_a, pair_g, pairs, dim, pooled_.ensure(pairs * dim)),
      "pool_pairs");
}

/// Index key from the latent before rope, then the main entry from the rotated latent.
result<void> key_compressor::write(step_context& step, std::int64_t layer, std::size_t source) {
  const model_spec& spec = step.spec;
  const layer_weights& w = step.model.layers()[static_cast<std::size_t>(layer)];
  const auto count = static_cast<std::int64_t>(entries_.size());
  const kernels::rope_table rope = step.model.rope(layer);
  std::byte** places = places_.ensure(count);

  bf16* key = key_.ensure(count * spec.index_head_dim);
  const std::array jobs{
      linear(w.indexer->wk, latent_.data(), count, key_raw_.ensure(count * spec.index_head_dim))};
  DI_TRY_VOID(run_linears(step, jobs));
  DI_TRY_VOID(normalise(step, key_raw_.data(), w.indexer->k_norm, count, spec.index_head_dim, key));
  DI_TRY_VOID(check_op(step.ops.rope(step.stream, key, count, 1, spec.index_head_dim,
                                     entry_positions_.data(), rope, false),
                       "rope"));
  for (std::int64_t i = 0; i < count; ++i) {
    const entry_place& place = entries_[static_cast<std::size_t>(i)];
    places[i] = place.sequence->index_row(source, place.entry);
  }
  DI_TRY_VOID(check_op(step.ops.pack_rows(step.stream, kernels::row_format::fp4_32, key,
                                          spec.index_head_dim, count, spec.index_head_dim, places),
                       "pack_rows"));
  if (step.probe != nullptr) {
    DI_TRY_VOID(check_op(step.ops.unpack_rows(step.stream, kernels::row_format::fp4_32, places,
                                              count, spec.index_head_dim, key),
                         "unpack_rows"));
    step.visit({layer, "index_k", probe_type::bfloat16, key, count, spec.index_head_dim});
  }

  DI_TRY_VOID(check_op(step.ops.rope(step.stream, latent_.data(), count, 1, spec.head_dim,
                                     entry_positions_.data(), rope, false),
                       "rope"));
  for (std::int64_t i = 0; i < count; ++i) {
    const entry_place& place = entries_[static_cast<std::size_t>(i)];
    places[i] = place.sequence->main_row(source, place.entry);
  }
  DI_TRY_VOID(check_op(step.ops.pack_rows(step.stream, kernels::row_format::fp4_16, latent_.data(),
                                          spec.head_dim, count, spec.head_dim, places),
                       "pack_rows"));
  if (step.probe != nullptr) {
    DI_TRY_VOID(check_op(step.ops.unpack_rows(step.stream, kernels::row_format::fp4_16, places,
                                              count, spec.head_dim, latent_.data()),
                         "unpack_rows"));
    step.visit({layer, "main_kv", probe_type::bfloat16, latent_.data(), count, spec.head_dim});
  }
  return {};
}

result<void> key_compressor::publish(step_context& step, std::int64_t layer) {
  const std::int64_t ratio = step.spec.ratio(layer);
  const compressor_weights& w = *step.model.layers()[static_cast<std::size_t>(layer)].compressor;
  const std::size_t source = step.segments.front().sequence->layout().source_index(layer);
  list_entries(step, ratio);
  const auto count = static_cast<std::int64_t>(entries_.size());
  if (ratio == 1 && count < step.rows)
    drop_kept_rows(step);
  if (ratio == 2)
    DI_TRY_VOID(pool(step, source));
  if (count == 0)
    return {};
  const bf16* raw = ratio == 2 ? pooled_.data() : projected_.data();
  DI_TRY_VOID(normalise(step, raw, w.norm, count, step.spec.head_dim,
                        latent_.ensure(count * step.spec.head_dim)));
  return write(step, layer, source);
}

} // namespace di::engine
