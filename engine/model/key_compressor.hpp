// SPDX-License-Identifier: Apache-2.0
// KV source layers: from normed rows to compressed entries and index keys in the sequence's pages.
// Private to engine/model.
#pragma once

#include "engine/model/step_context.hpp"

namespace di::engine {

/// Makes the entries that become complete in a step and writes them to their pages, where they are
/// then read like old ones. Ratio 2 pools pairs of tokens; the first half of an open pair waits in
/// the sequence's tail.
/// @source spec of the model, 2.5
class key_compressor {
public:
  /// Projections of the normed rows, to run in one region with others; append to `jobs`.
  void add_jobs(step_context& step, std::int64_t layer, const bf16* normed,
                std::vector<kernels::linear_job>& jobs);
  /// After the jobs ran: pools, norms, rotates, packs.
  result<void> publish(step_context& step, std::int64_t layer);

private:
  /// One entry made in this step.
  struct entry_place {
    sequence_state* sequence = nullptr;
    std::int64_t entry = 0;
  };
  /// First entry that the segment completes and may write.
  static std::int64_t first_entry(const segment_rows& segment, std::int64_t ratio);
  void drop_kept_rows(step_context& step);
  void list_entries(step_context& step, std::int64_t ratio);
  result<void> pool(step_context& step, std::size_t source);
  result<void> write(step_context& step, std::int64_t layer, std::size_t source);

  std::vector<entry_place> entries_;
  buffer<std::int32_t> entry_positions_; ///< [entries] position of the first token of each
  buffer<bf16> projected_;               ///< ratio 1: [rows, head_dim]
  buffer<float> a_, g_;                  ///< ratio 2: [rows, head_dim]
  buffer<float> pair_a_, pair_g_;        ///< ratio 2: [entries, 2, head_dim]
  buffer<bf16> pooled_;                  ///< ratio 2: [entries, head_dim] before the norm
  buffer<bf16> latent_;                  ///< [entries, head_dim]
  buffer<bf16> key_raw_, key_;           ///< [entries, index_head_dim]
  buffer<std::byte*> places_;            ///< [entries]
};

} // namespace di::engine
