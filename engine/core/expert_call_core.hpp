// SPDX-License-Identifier: Apache-2.0
// The caller's side of expert calls: which rank is asked for which rows of a layer, which answers
// count, and what is asked again when a holder is gone or has moved.
#pragma once

#include "engine/moe/load_window.hpp"
#include "engine/moe/placement.hpp"
#include "messaging/base/env.hpp"
#include "messaging/proto/expert_shard.hpp"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace di::engine {

/// One routed row of a layer: what is asked, and where the answer belongs.
struct call_entry {
  std::uint32_t row = 0;    ///< of the demand
  std::uint32_t expert = 0; ///< routed expert
  std::uint32_t slot = 0;   ///< row * experts_per_token + place: index into the demand's answers
};

/// A call to one holder. Entries by row, then ascending expert.
struct expert_call {
  call_id id;
  std::size_t target = 0; ///< index in the placement it was made under
  placed_rank holder;
  epoch placement{}; ///< version that it was made under
  layer_id layer;
  bool local = false;              ///< the caller's own shard
  std::vector<std::uint32_t> rows; ///< distinct rows of the demand, ascending
  std::vector<call_entry> entries;
  instant sent;       ///< last time that it or a question about it was sent
  instant first_sent; ///< since when it is waited for
};

/// What a layer asks for; copied, as routing outlives a re-send.
struct layer_demand {
  layer_id layer;
  std::uint32_t rows = 0, experts_per_token = 0;
  std::span<const std::int32_t> experts; ///< [rows, experts_per_token], ascending in each row
  std::uint32_t hidden = 0;              ///< width of a row
};

struct call_options {
  incarnation life{}; ///< of the caller: answers to calls of another life never match
  duration ask_after = std::chrono::milliseconds{500};
  /// [bytes] of a call's answer; a larger call is split. Its codes take at most half as much.
  std::size_t answer_bytes_max = std::size_t{16} << 20;
  load_window_options load{}; ///< windows of expert loads for REBALANCER; none by default
};

/// One layer at a time. An entry is in exactly one of three places until its answer is taken:
///
///   open call --answered--> done
///   open call --holder lost or moved--> (new call to another holder) or parked
///   parked --newer placement with a holder--> new call
///
/// A call is repeated to the same incarnation only if that says that it does not have it.
///
/// A layer of a step is routed by one placement, the newest at its begin(): a newer one that comes
/// meanwhile is used from the layer's next step on, and for rows that must be asked again. Rows for
/// an expert with several holders go round them, counted per layer and expert, so the choice
/// depends on the rows alone and not on when answers come. Owned by the RANK shell; used on its
/// thread only.
class expert_call_core {
public:
  expert_call_core(rank_id self, call_options options)
      : self_{self}, options_{options}, next_call_{first_call(options.life)}, load_{options.load} {}

  /// Follows a newer placement; an older one is ignored. Parked entries find their new holders.
  void install(std::shared_ptr<const placement> p);
  const placement* current() const noexcept { return placement_.get(); }
  /// No open call was made under an older placement than this one: what placement_installed may
  /// say. Rises with install() and when older calls are answered. 0 without a placement
  epoch settled() const noexcept;

  /// Begins a layer. @pre complete() and current()
  /// @errors bad_argument: an expert that the placement does not know
  result<void> begin(const layer_demand& demand);
  /// Calls to send now, each given once; valid until the next call of a non-const member.
  std::vector<const expert_call*> take_unsent(instant now);

  /// An answer came. @return the call to scatter, removed from the open ones; null if it is late,
  /// unknown or of the wrong size: to be ignored
  /// @param entries  rows that the answer has
  std::unique_ptr<expert_call> answered(call_id id, std::size_t entries);
  /// The holder does not have these experts. Nothing was computed.
  void moved(const proto::expert_moved& m);
  /// A rank's life ended: its open calls go elsewhere.
  void lost(rank_id rank, incarnation life);
  /// A view took effect, or a placement for it: whoever is not named is lost.
  void keep_only(std::span<const placed_rank> alive);
  /// The holder says that it does not know the call (it or its answer was lost): send it again.
  void forgotten(call_id id);
  /// A step has ended; its routed rows are part of a load window.
  /// @return the window for REBALANCER if it is full now
  std::optional<proto::expert_load> end_step();
  /// Gives up the layer: late answers are dropped. After an error of a step.
  void abandon();
  bool is_open(call_id id) const { return open_.contains(id); }
  /// Takes a call out unanswered; null if it is not open. Before abandon().
  std::unique_ptr<expert_call> close(call_id id);
  /// The open calls to the own shard.
  std::set<call_id> local_open() const;

  /// Calls that are late, to be asked about; counts them as asked.
  std::vector<const expert_call*> take_late(instant now);
  /// Every entry is answered (or nothing was begun).
  bool complete() const noexcept { return open_.empty() && parked_.empty(); }
  std::size_t open() const noexcept { return open_.size(); }
  std::size_t parked() const noexcept { return parked_.size(); }
  /// Every entry of the layer is in exactly one place.
  void check() const;

private:
  /// Lives are random and start far apart (times an odd number: one to one).
  static std::uint64_t first_call(incarnation life) noexcept {
    return life.v * 0x9e37'79b9'7f4a'7c15U + 1;
  }
  void route(std::vector<call_entry> entries);
  std::optional<std::size_t> target_of(std::size_t self, const call_entry& entry);
  std::uint64_t take_turn(std::uint32_t expert);

  rank_id self_;
  call_options options_;
  std::shared_ptr<const placement> placement_;
  layer_id layer_;
  std::size_t call_entries_max_ = 1;
  std::uint64_t next_call_;
  std::map<call_id, std::unique_ptr<expert_call>> open_;
  std::vector<call_id> unsent_;
  std::vector<call_entry> parked_;
  std::set<std::pair<rank_id, incarnation>> dead_;
  std::set<std::pair<rank_id, incarnation>> moved_; ///< refused something under this placement
  std::vector<std::vector<std::uint64_t>> turns_;   ///< [layers][experts] rows sent so far
  load_window load_;
  std::size_t entries_total_ = 0, entries_done_ = 0;
};

} // namespace di::engine
