// SPDX-License-Identifier: Apache-2.0
// The Engram module at the start of some layers: hashed n-grams of token classes look up rows of a
// large table, whose projection is added to the streams. Private to engine/model.
#pragma once

#include "engine/model/step_context.hpp"

namespace di::engine {

/// Reads tokens only, so it keeps no state: look-back comes from the sequence's history.
/// @source spec of the model, 2.7
class engram_site {
public:
  /// Table rows of one position: [columns], n-gram size major, head minor.
  static void row_ids(const loaded_model& model, std::size_t engram_index,
                      const segment_rows& segment, std::int64_t position, std::int32_t* ids);

  /// X_s += gate_s * value for all rows, in place. x [rows, streams, hidden]
  result<void> run(step_context& step, std::int64_t layer, bf16* x);

private:
  result<void> gather(step_context& step, const engram_weights& weights);

  buffer<std::int32_t> ids_; ///< [rows, columns]
  buffer<std::byte> packed_; ///< [rows * columns, head_dim + head_dim / 32]
  buffer<const std::byte*> pointers_;
  buffer<bf16> embedding_; ///< [rows, columns * head_dim]
  buffer<bf16> kv_;        ///< [rows, (streams + 1) * hidden]
  quantised_rows quantised_;
};

} // namespace di::engine
