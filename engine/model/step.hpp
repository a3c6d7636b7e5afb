// SPDX-License-Identifier: Apache-2.0
// One step of one rank as a resumable computation: rows of several sequences in, logits out, and in
// between it stops at each MoE layer and says which expert rows it needs. Who answers (own shard,
// other ranks) is the caller's business.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace di::engine {

using bf16 = std::uint16_t;

class sequence_state; // engine/model/sequence_state.hpp: rings, entries, tails, token history of
                      // one sequence

enum class logits_wanted : std::uint8_t { none, last, all };

/// Rows of one sequence in a step: prefill chunk, decode row or verify rows, all alike.
struct step_segment {
  sequence_state* sequence = nullptr;
  std::uint32_t first_position = 0; ///< == sequence->length(); rows follow without a gap
  std::span<const token_id> tokens; ///< [rows], valid until the step is done
  logits_wanted logits = logits_wanted::last;
};

/// What a layer's MoE needs from expert shards. Valid until resume().
struct expert_demand {
  layer_id layer;
  std::uint32_t rows = 0, experts_per_token = 0, hidden = 0;
  std::span<const std::uint8_t> codes;  ///< [rows, hidden] e4m3 activation codes
  std::span<const std::uint8_t> scales; ///< [rows, hidden / 32] e8m0
  std::span<const std::int32_t>
      experts;                    ///< [rows, experts_per_token], ASCENDING expert id in each row
  std::span<const float> weights; ///< [rows, experts_per_token] routing weight of that expert
  std::span<bf16> answers;        ///< [rows, experts_per_token, hidden] to be filled by the caller
};

enum class step_state : std::uint8_t { needs_experts, done };

/// Runs steps on one rank. Owned by RANK, used on its thread only; one step at a time.
class step_runner {
public:
  virtual ~step_runner() = default;

  /// Begins a step; takes KV pages for its rows unless the sequences have them already. A step that
  /// was not brought to its end is dropped; its sequences are then unusable.
  /// @errors bad_argument (position gap, token id out of range), context_exceeded, kv_exhausted;
  /// the
  ///         sequences are unchanged
  virtual result<step_state> start(std::span<const step_segment> segments) = 0;
  /// @pre state needs_experts
  virtual const expert_demand& demand() const = 0;
  /// Optional: work of this rank that needs no answers (the shared expert). Call it once the demand
  /// is on its way; resume() does what is left. @pre state needs_experts
  virtual result<void> work_while_waiting() { return {}; }
  /// Goes on; every answer must have been filled. @pre state needs_experts
  virtual result<step_state> resume() = 0;
  /// Logits of a segment: [rows wanted, vocab] fp32; valid until the next start(). @pre state done
  virtual std::span<const float> logits(std::size_t segment) const = 0;
  /// Asks following steps for what draft layers read (draft_runner).
  virtual void want_taps(bool /*wanted*/) {}
  /// Of the LAST rows of a segment, as many as went through all layers: means over the streams at
  /// the draft layers' target layers, [rows, targets, hidden]. Empty unless asked for and the model
  /// has draft layers; valid until the next start(). @pre state done
  virtual std::span<const bf16> taps(std::size_t /*segment*/) const { return {}; }
};

/// Rows for one expert in a shard's batch.
struct expert_job {
  layer_id layer;
  expert_id expert;
  std::vector<const std::uint8_t*> codes;  ///< [rows] -> [hidden] e4m3
  std::vector<const std::uint8_t*> scales; ///< [rows] -> [hidden / 32]
  std::vector<float> weights;              ///< [rows]
  std::vector<bf16*> out;                  ///< [rows] -> [hidden]
};

/// Computes routed experts from the checkpoint's pages. Owned by EXPERT_SHARD, used on its thread
/// only.
class expert_runner {
public:
  virtual ~expert_runner() = default;
  /// Runs all jobs as grouped GEMMs. Row results do not depend on what else is in the call.
  virtual result<void> run(std::span<expert_job> jobs) = 0;
};

} // namespace di::engine
