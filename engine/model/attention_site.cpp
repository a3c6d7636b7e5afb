// SPDX-License-Identifier: Apache-2.0
// The attention sublayer.
#include "engine/model/attention_site.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace di::engine {

void attention_site::begin(step_context& step) {
  selector_.begin(step);
}

/// All projections of the input in one region, then those of the q latent.
result<void> attention_site::project(step_context& step, std::int64_t layer, const bf16* normed) {
  const model_spec& spec = step.spec;
  const attention_weights& w = step.model.layers()[static_cast<std::size_t>(layer)].attention;
  const bool scores = spec.is_index_source(layer) && selector_.scores_needed(step, layer);
  DI_TRY_VOID(quantise(step, normed, spec.hidden_size, step.rows, spec.hidden_size, input_));
  jobs_.clear();
  jobs_.push_back(linear(w.wq_a, input_, q_latent_raw_.ensure(step.rows * spec.q_lora_rank)));
  jobs_.push_back(linear(w.wkv, input_, kv_raw_.ensure(step.rows * spec.head_dim)));
  if (spec.is_kv_source(layer))
    compressor_.add_jobs(step, layer, normed, jobs_);
  if (scores)
    selector_.add_weight_job(step, layer, normed, jobs_);
  DI_TRY_VOID(run_linears(step, jobs_));

  DI_TRY_VOID(normalise(step, q_latent_raw_.data(), w.q_norm, step.rows, spec.q_lora_rank,
                        q_latent_norm_.ensure(step.rows * spec.q_lora_rank)));
  DI_TRY_VOID(quantise(step, q_latent_norm_.data(), spec.q_lora_rank, step.rows, spec.q_lora_rank,
                       q_latent_));
  jobs_.clear();
  jobs_.push_back(linear(w.wq_b, q_latent_, q_.ensure(step.rows * spec.q_width())));
  if (scores)
    selector_.add_query_job(step, layer, q_latent_, jobs_);
  DI_TRY_VOID(run_linears(step, jobs_));

  DI_TRY_VOID(
      check_op(step.ops.rope(step.stream, q_.data(), step.rows, spec.num_attention_heads,
                             spec.head_dim, step.positions.data(), step.model.rope(layer), false),
               "rope"));
  step.visit(layer, "attn_q", q_.data(), spec.q_width());
  return {};
}

/// Window rows from their projections, in the format that they are read in.
result<void> attention_site::pack_window(step_context& step, std::int64_t layer) {
  const std::int64_t dim = step.spec.head_dim;
  const bf16* norm = step.model.layers()[static_cast<std::size_t>(layer)].attention.kv_norm;
  DI_TRY_VOID(normalise(step, kv_raw_.data(), norm, step.rows, dim, kv_.ensure(step.rows * dim)));
  DI_TRY_VOID(check_op(step.ops.rope(step.stream, kv_.data(), step.rows, 1, dim,
                                     step.positions.data(), step.model.rope(layer), false),
                       "rope"));
  const std::int64_t row_bytes = kernels::row_bytes(kernels::row_format::fp8_32, dim);
  std::byte* rows = window_.ensure(step.rows * row_bytes);
  std::byte** at = window_at_.ensure(step.rows);
  for (std::int64_t r = 0; r < step.rows; ++r)
    at[r] = rows + r * row_bytes;
  DI_TRY_VOID(check_op(step.ops.pack_rows(step.stream, kernels::row_format::fp8_32, kv_.data(), dim,
                                          step.rows, dim, at),
                       "pack_rows"));
  if (step.probe != nullptr) {
    DI_TRY_VOID(check_op(step.ops.unpack_rows(step.stream, kernels::row_format::fp8_32, at,
                                              step.rows, dim, kv_.data()),
                         "unpack_rows"));
    step.visit(layer, "window_kv", kv_.data(), dim);
  }
  return {};
}

/// Per row: `window` slots, positions ascending from the floor on, those beyond the query null;
/// then the selected entries ascending. Depends on the row's position, floor and selection only.
void attention_site::build_lists(step_context& step, std::int64_t layer) {
  const model_spec& spec = step.spec;
  const std::int64_t window = spec.sliding_window;
  const bool compressed = spec.ratio(layer) > 0;
  std::int64_t most = 0;
  if (compressed)
    for (std::int64_t r = 0; r < step.rows; ++r)
      most = std::max(most, static_cast<std::int64_t>(selector_.selected(r).size()));
  list_stride_ = window + most;
  const std::byte** lists = list_.ensure(step.rows * list_stride_);
  std::int32_t* window_count = window_count_.ensure(step.rows);
  std::int32_t* total_count = total_count_.ensure(step.rows);
  const std::size_t source =
      compressed ? step.segments.front().sequence->layout().source_index(*spec.kv_source_of(layer))
                 : 0;
  for (const segment_rows& segment : step.segments) {
    const std::int64_t floor = segment.sequence->window_floor(layer);
    for (std::int64_t r = 0; r < segment.rows; ++r) {
      const std::int64_t row = segment.first_row + r;
      const std::int64_t position = segment.first_position + r;
      const std::byte** list = lists + row * list_stride_;
      std::int64_t slot = 0;
      for (std::int64_t p = std::max(floor, position - window + 1); p <= position; ++p)
        list[slot++] = p < segment.first_position
                           ? segment.sequence->window_row(layer, p)
                           : window_at_.data()[segment.first_row + p - segment.first_position];
      while (slot < window)
        list[slot++] = nullptr;
      if (compressed)
        for (const std::int32_t entry : selector_.selected(row))
          list[slot++] = segment.sequence->main_row(source, entry);
      window_count[row] = static_cast<std::int32_t>(window);
      total_count[row] = static_cast<std::int32_t>(slot);
    }
  }
}

/// The ring's rows, positions ascending, then the block; no masked slots between, as in the
/// reference.
void attention_site::build_block_lists(step_context& step, std::int64_t layer) {
  const std::int64_t window = step.spec.sliding_window;
  const std::int64_t draft_layer = layer - step.spec.num_hidden_layers;
  std::int64_t longest = 0;
  for (const segment_rows& segment : step.segments)
    longest = std::max(longest, segment.rows);
  list_stride_ = window + longest;
  const std::byte** lists = list_.ensure(step.rows * list_stride_);
  std::int32_t* counts = window_count_.ensure(step.rows);
  std::int32_t* total_count = total_count_.ensure(step.rows);
  for (const segment_rows& segment : step.segments)
    for (std::int64_t r = segment.first_row; r < segment.first_row + segment.rows; ++r) {
      const std::byte** list = lists + r * list_stride_;
      std::int64_t slot = 0;
      for (std::int64_t p = segment.sequence->draft_begin(); p < segment.first_position; ++p)
        list[slot++] = segment.sequence->draft_row(draft_layer, p);
      for (std::int64_t b = 0; b < segment.rows; ++b)
        list[slot++] = window_at_.data()[segment.first_row + b];
      counts[r] = total_count[r] = static_cast<std::int32_t>(slot);
    }
}

result<void> attention_site::read(step_context& step, std::int64_t layer) {
  const model_spec& spec = step.spec;
  kernels::attention_args args;
  args.q = q_.data();
  args.rows = step.rows;
  args.heads = spec.num_attention_heads;
  args.dim = spec.head_dim;
  args.kv = list_.data();
  args.kv_stride = list_stride_;
  args.window_count = window_count_.data();
  args.total_count = total_count_.data();
  args.sink = step.model.layers()[static_cast<std::size_t>(layer)].attention.sink;
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  args.out = core_.ensure(step.rows * spec.q_width());
  DI_TRY_VOID(check_op(step.ops.attention(step.stream, args), "attention"));
  step.visit(layer, "attn_core", core_.data(), spec.q_width());
  return check_op(step.ops.rope(step.stream, core_.data(), step.rows, spec.num_attention_heads,
                                spec.head_dim, step.positions.data(), step.model.rope(layer), true),
                  "rope");
}

result<void> attention_site::project_out(step_context& step, std::int64_t layer, bf16* out) {
  const model_spec& spec = step.spec;
  const attention_weights& w = step.model.layers()[static_cast<std::size_t>(layer)].attention;
  bf16* z = z_.ensure(step.rows * spec.o_width());
  jobs_.clear();
  for (std::int64_t group = 0; group < spec.o_groups; ++group) {
    kernels::linear_job job =
        linear(w.wo_a[static_cast<std::size_t>(group)], core_.data() + group * spec.o_group_width(),
               step.rows, z + group * spec.o_lora_rank);
    job.x_stride = spec.q_width();
    job.y_stride = spec.o_width();
    jobs_.push_back(job);
  }
  DI_TRY_VOID(run_linears(step, jobs_));
  DI_TRY_VOID(quantise(step, z, spec.o_width(), step.rows, spec.o_width(), grouped_));
  const std::array jobs{linear(w.wo_b, grouped_, out)};
  return run_linears(step, jobs);
}

/// Moves the step's window rows to the rings; of a long chunk only what a ring holds.
void attention_site::keep_window(step_context& step, std::int64_t layer) {
  for (const segment_rows& segment : step.segments) {
    const kv_layout& layout = segment.sequence->layout();
    for (std::int64_t r = std::max<std::int64_t>(0, segment.rows - layout.ring_rows);
         r < segment.rows; ++r)
      std::memcpy(segment.sequence->window_row(layer, segment.first_position + r),
                  window_at_.data()[segment.first_row + r], layout.window_row_bytes);
  }
}

result<void> attention_site::publish(step_context& step, std::int64_t layer, const bf16* normed) {
  const model_spec& spec = step.spec;
  const attention_weights& w = step.model.layers()[static_cast<std::size_t>(layer)].attention;
  DI_TRY_VOID(quantise(step, normed, spec.hidden_size, step.rows, spec.hidden_size, input_));
  jobs_.clear();
  jobs_.push_back(linear(w.wkv, input_, kv_raw_.ensure(step.rows * spec.head_dim)));
  if (spec.is_kv_source(layer))
    compressor_.add_jobs(step, layer, normed, jobs_);
  DI_TRY_VOID(run_linears(step, jobs_));
  DI_TRY_VOID(pack_window(step, layer));
  if (spec.is_kv_source(layer))
    DI_TRY_VOID(compressor_.publish(step, layer));
  keep_window(step, layer);
  return {};
}

result<void> attention_site::run(step_context& step, std::int64_t layer, bf16* normed, bf16* out) {
  DI_TRY_VOID(project(step, layer, normed));
  DI_TRY_VOID(pack_window(step, layer));
  if (step.spec.is_kv_source(layer))
    DI_TRY_VOID(compressor_.publish(step, layer));
  if (step.spec.is_index_source(layer))
    DI_TRY_VOID(selector_.run(step, layer));
  build_lists(step, layer);
  DI_TRY_VOID(read(step, layer));
  DI_TRY_VOID(project_out(step, layer, out));
  keep_window(step, layer);
  step.visit(layer, "attn_out", out, step.spec.hidden_size);
  return {};
}

result<void> attention_site::run_blocks(step_context& step, std::int64_t layer, bf16* normed,
                                        bf16* out) {
  DI_TRY_VOID(project(step, layer, normed));
  DI_TRY_VOID(pack_window(step, layer));
  build_block_lists(step, layer);
  DI_TRY_VOID(read(step, layer));
  DI_TRY_VOID(project_out(step, layer, out));
  step.visit(layer, "attn_out", out, step.spec.hidden_size);
  return {};
}

} // namespace di::engine
