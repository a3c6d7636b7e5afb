// SPDX-License-Identifier: Apache-2.0
// Decisions of REBALANCER: when experts move, and the order of loading, switching and letting go.
// Which expert goes where is planned by engine/moe/eplb.hpp.
#pragma once

#include "engine/moe/load_sum.hpp"
#include "engine/moe/placement.hpp"
#include "engine/moe/rebalance_policy.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/outbox.hpp"
#include "messaging/proto/scheduler.hpp"

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

namespace di::engine {

struct rebalancer_options {
  std::vector<expert_layers> groups; ///< of the model
  std::uint32_t redundant = 0;       ///< copies beyond one per expert
  std::vector<address> listeners = {"/control/scheduler", "/gateway/0"}; ///< get placement_settled
  duration resend_after = std::chrono::milliseconds{250}; ///< at first, then less and less often
  std::uint32_t ranks_min = 1; ///< with fewer nothing is published: calls park until someone joins
  rebalance_policy policy{};
};

/// A plan changes some layers. They are brought about in epochs, some layers each:
///
// clang-format off
///   idle       --view-->                             publishing   (the first: contiguous blocks;
///                                                    later: repaired(), then a plan to level it)
///   idle       --plan-->                             proposing    (shards load the new slots)
///   proposing  --all shards have loaded-->           publishing   (ranks switch, between steps)
///   publishing --all ranks and shards follow, and no
///                call made before is open-->         idle, or proposing the next layers;
///                                                    shards let go of the old slots
///   idle       --ranks are slow, or are no more-->   proposing    (they hold less, or again as much)
///   any        --newer view-->                       publishing   (a plan in flight is dropped)
///   any        --view below ranks_min-->             idle, and nothing is settled
///   any        --answer with a newer version-->      publishing   (of another life of control)
// clang-format on
///
/// A repaired placement is followed at once: shards map what they were given when it is asked for.
/// Everything else is loaded first and switched to in between. Versions rise over views and over
/// lives of the control process: view << 20 | n, and n goes on from whatever somebody answers.
///
/// Owned by one shell, used on its thread only.
class rebalancer_core {
public:
  explicit rebalancer_core(rebalancer_options options);

  /// A view took effect. @errors those of placement::contiguous
  result<void> install_view(epoch view, std::span<const placed_rank> ranks, instant now,
                            outbox& out);
  result<void> on(const proto::view_committed& m, instant now, outbox& out);
  result<void> on(const proto::placement_prepared& m, instant now, outbox& out);
  result<void> on(const proto::placement_installed& m, instant now, outbox& out);
  result<void> on(const proto::expert_load& m, instant now, outbox& out);
  /// Slow ranks give experts to others, as far as memory for these is reserved.
  result<void> on(const proto::ranks_slow& m, instant now, outbox& out);
  /// Loads of about the last two intervals, whatever was planned from them.
  result<proto::expert_heat> on(const proto::get_heat& m) const;
  result<void> on_due(timer which, instant now, outbox& out);
  /// All follow the placement and nothing is on its way.
  bool settled() const noexcept {
    return phase_ == phase::idle && placement_.ranks() > 0 && !parked_;
  }
  const placement& current() const noexcept { return placement_; }
  void check() const;

private:
  enum timer_kind : std::uint32_t { resend_due = 1 };
  enum class phase : std::uint8_t { idle, proposing, publishing };
  /// Slots of a group's layers: what is planned. [layers, ranks, slots]
  using table = std::vector<std::uint32_t>;
  struct progress { ///< of a rank's load windows
    epoch placement{};
    std::uint32_t steps = 0;
  };

  std::uint64_t next_version(epoch view);
  void overtake(epoch seen, outbox& out);
  std::vector<load_view> load_views() const;
  std::vector<double> slowness() const;
  void level();
  void publish(outbox& out);
  void propose_next(outbox& out);
  void settle(outbox& out);
  void begin_sending(outbox& out);
  void send_all(outbox& out);
  table table_of(std::size_t group) const;
  result<void> look(outbox& out);
  result<void> plan(outbox& out);
  void plan_randomly();
  void show(std::string_view metric, double& shown, double value, outbox& out);

  rebalancer_options options_;
  placement placement_, next_;
  phase phase_ = phase::idle;
  std::uint64_t version_ = 0;                              ///< highest ever made
  epoch seen_view_{};                                      ///< the newest, published for or not
  bool parked_ = false;                                    ///< too few ranks
  bool uneven_ = false;                                    ///< repaired and not levelled yet
  std::map<std::pair<rank_id, incarnation>, double> slow_; ///< [times as long]
  epoch told_view_{};                                      ///< whose settling listeners know
  std::set<address> waiting_;                              ///< who has not loaded or installed it
  duration wait_{};                                        ///< until it is sent to them again
  std::vector<table> goal_; ///< [groups] where the plan leads; empty: nowhere
  load_sum loads_;
  load_sum heat_; ///< as loads_, but never cleared, and without bins: for operators to see
  std::map<rank_id, progress> progress_;
  bool active_ = false;                                   ///< between begin_above and end_below
  std::uint64_t forced_ = 0;                              ///< random placements made
  double shown_ = 0, shown_before_ = 0, shown_after_ = 0; ///< gauges, counted by differences
};

} // namespace di::engine
