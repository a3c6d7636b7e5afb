// SPDX-License-Identifier: Apache-2.0
// How a prompt is computed in each prefill and prefix mode: floors, rows to run again below a hit,
// where a snapshot is worth taking. Pure arithmetic on lengths.
#pragma once

#include "engine/kv/prefix_index.hpp"
#include "engine/model/kv_layout.hpp"
#include "engine/model/spec.hpp"
#include "messaging/proto/sampling.hpp"

#include <cstdint>

namespace di::engine {

/// The numbers of a model that the modes depend on.
struct prefill_rules {
  std::int64_t layers = 0;         ///< backbone
  std::int64_t encoder_layers = 0; ///< [0, n) up to the last KV source, that one included
  std::int64_t draft_layers = 0;
  std::int64_t window = 0;      ///< [positions]
  std::int64_t verify_rows = 0; ///< [rows] of one verification: next token and drafts
  std::int64_t page_tokens = engine::page_tokens;

  /// Rows of a compact prefill if the request names none: 140 in the released model.
  std::int64_t default_keep() const noexcept { return window + 2 * verify_rows; }
  /// Prompt tokens that a bounded hit leaves to compute: 134 in the released model.
  std::int64_t bounded_tail() const noexcept { return window + verify_rows; }
};

prefill_rules make_prefill_rules(const model_spec& spec);

/// What a request asks for; `keep_rows` 0 is the default, less than the window is the window.
struct prefill_request {
  std::int64_t prompt_tokens = 0;
  proto::prefill_mode prefill = proto::prefill_mode::full;
  std::int64_t keep_rows = 0;
  proto::prefix_mode prefix = proto::prefix_mode::off;
};

/// First prompt position that the layers behind the last KV source compute in a cold run.
std::int64_t decoder_floor(const prefill_rules& rules, const prefill_request& request);

/// Longest hit that the request may use, a multiple of the page size; 0: look up nothing.
/// At least one prompt token is left to compute; `bounded` leaves bounded_tail() and takes no hit
/// that its window would cover.
std::int64_t hit_limit(const prefill_rules& rules, const prefill_request& request);

/// Kind of snapshot for the request.
snapshot_kind snapshot_kind_of(const prefill_request& request);
/// Longest snapshot that may serve it. @param known [tokens] prompt and what was emitted already
std::int64_t snapshot_limit(const prefill_rules& rules, const prefill_request& request,
                            std::int64_t known);
/// Prompt position at which a snapshot should be taken, so a chunk should end there; 0: none. The
/// last page boundary that a repeated or longer prompt can hit.
std::int64_t snapshot_boundary(const prefill_rules& rules, const prefill_request& request);

/// How the sequence starts behind a hit.
struct prefill_start {
  sequence_floors floors;
  std::int64_t first_row = 0; ///< first position to run: set by the snapshot or the replay
  bool use_snapshot = false;
};

/// @param decoder   decoder_floor() of the request
/// @param hit       [tokens] adopted pages, a multiple of the page size; 0: cold
/// @param bounded   0, or H <= hit: the request's bounded hit (its floors follow from H alone)
/// @param snapshot  [tokens] length of the best snapshot at or below the hit; 0: none
prefill_start plan_start(const prefill_rules& rules, std::int64_t decoder, std::int64_t hit,
                         std::int64_t bounded, std::int64_t snapshot);

/// The same with windows of all layers at `length` that were made under the request's own floors
/// (sequence_state::resume_windows): nothing below them is run again.
/// @param length  [tokens] above bounded, at most hit
prefill_start plan_resume(const prefill_rules& rules, std::int64_t decoder, std::int64_t hit,
                          std::int64_t bounded, std::int64_t length);

} // namespace di::engine
