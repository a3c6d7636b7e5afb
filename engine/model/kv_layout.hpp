// SPDX-License-Identifier: Apache-2.0
// Where the cached state of one sequence lies: bytes of a page, of a window ring and of pair tails.
#pragma once

#include "engine/model/spec.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace di::engine {

/// Tokens of all source layers that one page covers. Even, so that a page never splits a pair.
inline constexpr std::int64_t page_tokens = 128;

/// One KV source layer's share of a page: rows of main KV (fp4_16), then rows of index keys
/// (fp4_32).
struct kv_source_layout {
  std::int64_t layer = 0;
  std::int64_t ratio = 1;         ///< tokens per entry, 1 or 2
  std::int64_t page_entries = 0;  ///< page_tokens / ratio
  std::size_t main_offset = 0;    ///< [bytes] into the page
  std::size_t main_row_bytes = 0; ///< one entry
  std::size_t index_offset = 0;   ///< [bytes] into the page
  std::size_t index_row_bytes = 0;
};

/// The whole layout. Plain data, made once per model.
struct kv_layout {
  std::vector<kv_source_layout> sources; ///< [KV sources] ascending layer
  std::size_t page_bytes = 0;            ///< one page, all sources

  std::int64_t layers = 0;          ///< window rings per sequence
  std::int64_t draft_layers = 0;    ///< draft rings per sequence, of the same size
  std::int64_t window = 0;          ///< [positions] that a query reads, itself counted in
  std::int64_t verify_rows = 0;     ///< [positions] that may be taken back
  std::int64_t ring_rows = 0;       ///< window + verify_rows; slot = position mod ring_rows
  std::size_t window_row_bytes = 0; ///< fp8_32 row
  std::int64_t head_dim = 0;
  std::int64_t tail_pairs = 0; ///< slots of pair tails; slot = (position / 2) mod tail_pairs

  /// Compressed KV of one token [bytes]; a half entry counts half.
  double bytes_per_token() const noexcept;
  /// Window rings, draft rings and tails of one sequence [bytes].
  std::size_t private_bytes() const noexcept;
  /// Layers up to the last KV source, that one included; 0 if there is none.
  std::int64_t encoder_layers() const noexcept {
    return sources.empty() ? 0 : sources.back().layer + 1;
  }
  /// Pages for `length` tokens.
  std::int64_t pages_for(std::int64_t length) const noexcept {
    return (length + page_tokens - 1) / page_tokens;
  }
  /// Position in `sources` of a KV source layer. @pre it is one
  std::size_t source_index(std::int64_t layer) const;
};

/// @param verify_rows  rows of one step that may be taken back by sequence_state::truncate; at
/// least 1, and at least a block of drafts
/// @source             spec of the model, section 4
kv_layout make_kv_layout(const model_spec& spec, std::int64_t verify_rows = 8);

} // namespace di::engine
