// SPDX-License-Identifier: Apache-2.0
// The attention sublayer of one layer: projections, window rows, compressed entries, the read, the
// output projection. Private to engine/model.
#pragma once

#include "engine/model/index_selector.hpp"
#include "engine/model/key_compressor.hpp"
#include "engine/model/step_context.hpp"

namespace di::engine {

/// Rows of any number of sequences go through together.
///
/// A step's window rows are packed into step memory first and read from there like the older ones
/// from the rings; they move to the rings when the layer's attention is done. So a chunk may be of
/// any length, although a ring holds only the window and the rows that may be taken back.
/// @source spec of the model, 2.4; doc/adr/0003-attention-list.md
class attention_site {
public:
  void begin(step_context& step);
  /// out = Attention(normed); both bf16 [rows, hidden].
  result<void> run(step_context& step, std::int64_t layer, bf16* normed, bf16* out);
  /// The same for the blocks of a draft pass: each row sees its sequence's draft ring and all rows
  /// of its segment, before and behind it. Nothing is kept. @source spec of the model, 2.10
  result<void> run_blocks(step_context& step, std::int64_t layer, bf16* normed, bf16* out);
  /// For rows that go no further: only their window rows and entries, into rings and pages.
  result<void> publish(step_context& step, std::int64_t layer, const bf16* normed);
  /// After rows left the step: selections of earlier layers stay with their rows.
  void compact(const row_cut& cut, const model_spec& spec) { selector_.compact(cut, spec); }

private:
  result<void> project(step_context& step, std::int64_t layer, const bf16* normed);
  result<void> pack_window(step_context& step, std::int64_t layer);
  void build_lists(step_context& step, std::int64_t layer);
  void build_block_lists(step_context& step, std::int64_t layer);
  result<void> read(step_context& step, std::int64_t layer);
  result<void> project_out(step_context& step, std::int64_t layer, bf16* out);
  void keep_window(step_context& step, std::int64_t layer);

  key_compressor compressor_;
  index_selector selector_;
  std::vector<kernels::linear_job> jobs_;
  quantised_rows input_, q_latent_, grouped_;
  buffer<bf16> q_latent_raw_, q_latent_norm_; ///< [rows, q_lora_rank]
  buffer<bf16> q_;                            ///< [rows, heads, head_dim]
  buffer<bf16> kv_raw_, kv_;                  ///< [rows, head_dim]
  buffer<std::byte> window_;                  ///< [rows] fp8_32 rows of this layer and step
  buffer<std::byte*> window_at_;              ///< [rows]
  buffer<const std::byte*> list_;             ///< [rows, list_stride_]
  std::int64_t list_stride_ = 0;
  buffer<std::int32_t> window_count_, total_count_; ///< [rows]
  buffer<bf16> core_;                               ///< [rows, heads, head_dim]
  buffer<bf16> z_;                                  ///< [rows, o_groups * o_lora_rank]
};

} // namespace di::engine
