// SPDX-License-Identifier: Apache-2.0
// The draft layers as a resumable computation of the same shape as a step: accepted rows in, a
// block of draft tokens and their confidences out.
#pragma once

#include "engine/model/loaded_model.hpp"
#include "engine/model/step.hpp"
#include "engine/model/step_probe.hpp"
#include "kernels/kernels.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace di::engine {

/// Rows that the target has processed and that stay: what the draft layers may see of them.
struct draft_feed {
  sequence_state* sequence = nullptr;
  std::int64_t first_position = 0; ///< >= sequence->draft_end(); the rows end at or before length()
  std::span<const bf16> taps;      ///< [rows, targets, hidden] of step_runner::taps()
};

/// A sequence to draft for.
struct draft_segment {
  sequence_state* sequence = nullptr;
  token_id next = 0; ///< drawn by the target for position sequence->length(); not computed yet
};

/// Picks draft k (from 0) of a segment. @param logits [vocab]
using draft_picker = std::function<result<token_id>(std::size_t segment, std::size_t k,
                                                    std::span<const float> logits)>;

/// Drafts for sequences of one rank. Owned by RANK, used on its thread only; one pass at a time.
///
/// One round: feed() the rows that were accepted, start(), answer demands until done (their layers
/// are num_hidden_layers + m), draw(), then read drafts() and confidences(). The pass changes no
/// sequence; feed() changes draft rings only. What a segment gets depends on its own sequence and
/// `next`, not on the other segments.
/// @source spec of the model, 2.10
class draft_runner {
public:
  virtual ~draft_runner() = default;

  /// Drafts of one pass.
  virtual std::int64_t block() const noexcept = 0;

  /// Appends accepted rows of any number of sequences to their draft rings. A gap behind
  /// draft_end() is allowed (prefix hits, rows without taps): the pass then sees nothing before it.
  /// @errors bad_argument: rows behind the sequence's end, or before draft_end(); a size that is no
  ///         whole number of rows. Names the first such feed; these are left out, their rings are
  ///         unchanged, all the others are fed
  virtual result<void> feed(std::span<const draft_feed> rows) = 0;

  /// Begins a pass: block() rows per segment.
  /// @errors bad_argument (no segment, token out of range, a sequence not fed up to its length)
  virtual result<step_state> start(std::span<const draft_segment> segments) = 0;
  /// @pre state needs_experts
  virtual const expert_demand& demand() const = 0;
  /// Optional: work of this rank that needs no answers. @pre state needs_experts
  virtual result<void> work_while_waiting() = 0;
  /// Goes on; every answer must have been filled. @pre state needs_experts
  virtual result<step_state> resume() = 0;

  /// Draws the drafts from left to right, each in view of the one before it.
  /// @param pick  called block() times per segment, k ascending. @errors those of pick
  /// @pre state done
  virtual result<void> draw(const draft_picker& pick) = 0;
  /// [block] of a segment; during draw() the first k are valid. Until the next start().
  virtual std::span<const token_id> drafts(std::size_t segment) const = 0;
  /// [block] logits: sigmoid of entry k is the predicted acceptance of draft k, given that all
  /// before it are accepted. After draw(), until the next start().
  virtual std::span<const float> confidences(std::size_t segment) const = 0;

  /// Shows every named tensor of the following calls to `probe`; null detaches. Layers are numbered
  /// as in demands; what belongs to none has all_layers().
  virtual void attach_probe(step_probe* probe) = 0;
};

/// @param model, ops, stream  outlive the runner; the stream may be the step runner's
/// @return  null if the model has no draft layers
std::unique_ptr<draft_runner>
make_draft_runner(const loaded_model& model, const kernels::op_table& ops, kernels::stream& stream);

} // namespace di::engine
