// SPDX-License-Identifier: Apache-2.0
// Index source layers: which compressed entries each row attends to. Private to engine/model.
#pragma once

#include "engine/model/row_cut.hpp"
#include "engine/model/step_context.hpp"

namespace di::engine {

/// Picks per row the best `index_topk` of the visible entries, ascending; rows with no more visible
/// entries than that take all of them without scoring. The candidate source also keeps, per row,
/// the best blocks of entries; later index sources look only inside them.
///
/// A pick depends on the row's query, its position and the entries only. Layers without an indexer
/// read the pick of the last index source: it stays valid until the next run().
/// @source spec of the model, 2.6 and 8.3
class index_selector {
public:
  /// Starts a step: no selection yet.
  void begin(step_context& step);

  /// True if some row of the step must be scored at this layer.
  bool scores_needed(const step_context& step, std::int64_t layer) const;

  /// Projections of the normed rows / of the quantised q latent, to run with others.
  void add_weight_job(step_context& step, std::int64_t layer, const bf16* normed,
                      std::vector<kernels::linear_job>& jobs);
  void add_query_job(step_context& step, std::int64_t layer, const quantised_rows& q_latent,
                     std::vector<kernels::linear_job>& jobs);

  /// Selects for an index source layer. Index keys of the step's rows are in their pages.
  /// @pre the jobs ran if scores_needed()
  result<void> run(step_context& step, std::int64_t layer);

  /// Rows left the step: what was handed down to the others moves with them.
  void compact(const row_cut& cut, const model_spec& spec);

  /// Selected entries of a row, ascending.
  std::span<const std::int32_t> selected(std::int64_t row) const noexcept {
    return {ids_.data() + row * stride_, static_cast<std::size_t>(counts_.data()[row])};
  }

private:
  /// Rows of one segment, scored together.
  struct row_group {
    const segment_rows* segment = nullptr;
    std::int64_t first = 0, rows = 0; ///< rows within the step
    std::int64_t visible_max = 0;
  };
  result<void> prepare_queries(step_context& step, std::int64_t layer);
  result<void> score_segment(step_context& step, std::int64_t layer, const segment_rows& segment);
  result<void> score_group(step_context& step, std::int64_t layer, const row_group& group);
  result<void> pick_blocks(step_context& step, std::int64_t row, const float* scores,
                           std::int64_t visible);
  const std::uint8_t* candidate_mask(step_context& step, std::int64_t row, std::int64_t visible);
  void show(step_context& step, std::int64_t layer);

  std::int64_t stride_ = 0;     ///< elements of ids_ per row
  buffer<std::int32_t> ids_;    ///< [rows, stride]
  buffer<std::int32_t> counts_; ///< [rows]
  buffer<std::int32_t> blocks_; ///< [rows, candidate_topk_blocks] ascending, -1 padded
  buffer<bf16> query_;          ///< [rows, index heads, index_head_dim]
  buffer<bf16> weights_;        ///< [rows, index heads]
  buffer<std::byte> packed_;    ///< [rows * index heads] fp4_32 rows
  buffer<std::byte*> packed_at_;
  buffer<float> scores_;         ///< [group rows, visible]
  buffer<std::int32_t> visible_; ///< [group rows]
  buffer<float> block_scores_;   ///< [blocks]
  buffer<std::uint8_t> mask_;    ///< [visible]
  buffer<std::int32_t> shown_;   ///< for probes
};

} // namespace di::engine
