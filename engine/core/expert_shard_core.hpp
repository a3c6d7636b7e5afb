// SPDX-License-Identifier: Apache-2.0
// Decisions of EXPERT_SHARD: which of the calls that have come run next and together, and what is
// answered to calls that cannot be served. Computes and loads nothing; holds no request state.
#pragma once

#include "engine/core/expert_slots.hpp"
#include "engine/moe/placement.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/outbox.hpp"

#include <deque>
#include <memory>
#include <vector>

namespace di::engine {

struct shard_options {
  rank_id rank;
  incarnation life{};
  std::uint32_t hidden = 0;             ///< width of a row
  std::uint32_t slice_rows = 64;        ///< [entries] computed before mail is looked at again
  std::uint32_t decode_turns_max = 8;   ///< slices of decode rows in a row while prompt rows wait
  std::uint32_t calls_max = 4096;       ///< queued; more are answered with unavailable
  std::uint32_t entries_max = 1U << 20; ///< of one call
  std::uint32_t held_max = 1024;        ///< calls that wait for a placement; more: unavailable
};

/// A call that is not answered yet.
struct queued_call {
  proto::expert_batch batch; ///< a copy; its rows are shared
  std::vector<std::uint32_t>
      order;                       ///< entries by expert, so that an expert's weights are read once
  std::size_t taken = 0;           ///< entries of `order` given to slices
  std::vector<std::uint16_t> rows; ///< [entries, hidden] bf16, filled by slices
};

/// One entry of a slice.
struct slice_entry {
  queued_call* call = nullptr;
  std::uint32_t entry = 0;
};

/// Work for one grouped GEMM: entries of one layer, by ascending expert.
struct expert_slice {
  layer_id layer;
  std::vector<slice_entry> entries;
};

/// Owned by the EXPERT_SHARD shell; used on its thread only.
class expert_shard_core {
public:
  explicit expert_shard_core(shard_options options) : options_{options}, slots_{options.rank} {}

  /// Call take_held() next.
  void install(std::shared_ptr<const placement> p);
  /// Calls that waited for the installed placement are queued, or answered with expert_moved.
  void take_held(instant now, outbox& out);
  /// A view took effect: calls of lives that left it are dropped. @pre no slice is out
  /// @return false: the own life is no longer in it
  bool install_view(const proto::view_committed& m);
  /// What this shard gets from the next placement is to be loaded; placement_prepared follows.
  void propose(std::shared_ptr<const placement> p, outbox& out);
  /// All ranks follow this version: what only older ones had here drains.
  void retire(epoch settled);
  /// A call on experts that only a newer placement than the own one gives this shard waits for it.
  result<void> on(const proto::expert_batch& m, instant now, outbox& out);
  result<void> on(const proto::ask_call& m, instant now, outbox& out);
  proto::shard_state state() const;
  epoch version() const noexcept {
    return slots_.current() ? slots_.current()->version() : epoch{};
  }

  const expert_slots& slots() const noexcept { return slots_; }
  /// An expert to load in the background; none if nothing is to be loaded.
  std::optional<layer_expert> next_load() const { return slots_.next_load(); }
  /// next_load() is loaded.
  void loaded(outbox& out);
  /// Experts that nobody will ask for any more and no call at hand needs, given once.
  std::vector<layer_expert> take_released();

  bool has_work() const noexcept { return !decode_.empty() || !prefill_.empty(); }
  /// The next slice. @pre has_work() and no slice is out
  const expert_slice& next_slice();
  /// The slice's rows are filled; calls that are complete with it are answered.
  void finish_slice(outbox& out);
  /// The slice could not be computed: its calls are answered with the error.
  void fail_slice(const error& why, outbox& out);
  void check() const;

private:
  using lane = std::deque<std::unique_ptr<queued_call>>;
  result<void> admissible(const proto::expert_batch& m) const;
  bool is_queued(rank_id caller, incarnation life, call_id call) const;
  bool is_open(const layer_expert& e) const;
  void tell_prepared(outbox& out);
  void answer(queued_call& call, outbox& out);

  shard_options options_;
  expert_slots slots_;
  lane decode_, prefill_;
  std::deque<proto::expert_batch> held_; ///< until their placement comes
  epoch view_{};
  std::vector<placed_rank> members_; ///< of the view
  std::uint32_t decode_turns_ = 0;
  expert_slice slice_;
  std::uint64_t calls_ = 0, entries_ = 0, batches_ = 0;
};

/// Path of the actor that gets the answers of a caller.
address rank_path(rank_id rank);
/// Path of a rank's EXPERT_SHARD.
address shard_path(rank_id rank);

} // namespace di::engine
