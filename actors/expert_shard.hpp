// SPDX-License-Identifier: Apache-2.0
// EXPERT_SHARD: owns an expert runner with a stream of its own and answers expert calls of every
// rank. Spawned detached; never waits for another actor.
#pragma once

#include "actors/kit.hpp"
#include "engine/core/expert_shard_core.hpp"
#include "engine/model/expert_pages.hpp"
#include "engine/model/step.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/membership.hpp"

#include <memory>

namespace di::actors {

struct shard_parts {
  engine::shard_options options;
  std::shared_ptr<engine::expert_runner> runner;   ///< used on the actor's thread only
  std::shared_ptr<engine::expert_loader> loader;   ///< likewise; null: nothing needs loading
  std::size_t load_bytes = std::size_t{256} << 10; ///< [bytes] of an expert loaded in one turn
};

/// Computes one slice, then reads its mail, then the next: decode rows that come meanwhile overtake
/// the slices of a long prompt. Experts of a proposed placement are loaded in small parts in
/// between: when there is nothing to compute, and one part after every few slices. A placement that
/// was never proposed (ranks were lost) is followed at once: its experts' pages come when they are
/// asked for. Ends when a view is committed without its own life.
class expert_shard_actor {
public:
  explicit expert_shard_actor(shard_parts parts);

  result<void> on(const proto::expert_batch& m, instant now, outbox& out);
  result<void> on(const proto::ask_call& m, instant now, outbox& out);
  result<void> on(const proto::placement_proposed& m, instant now, outbox& out);
  result<void> on(const proto::placement_published& m, instant now, outbox& out);
  result<void> on(const proto::placement_settled& m, instant now, outbox& out);
  result<void> on(const proto::view_committed& m, instant now, outbox& out);
  result<void> on(const proto::work_due& m, instant now, outbox& out);
  result<proto::shard_state> on(const proto::get_shard& m) const;
  void check() const { core_.check(); }

private:
  static constexpr std::uint32_t slices_per_load = 4;
  void announce(const engine::placement& next);
  void wake(outbox& out);
  void compute(outbox& out);
  void load(outbox& out);
  void release(outbox& out);

  shard_parts parts_;
  engine::expert_shard_core core_;
  std::vector<engine::expert_job> jobs_;
  std::uint64_t turn_ = 0;
  bool work_sent_ = false;
  std::uint32_t slices_since_load_ = 0;
  std::optional<engine::layer_expert> loading_; ///< and how much of it is done
  std::size_t load_done_ = 0;
};

struct expert_shard {
  static constexpr auto kind = "expert_shard";
  using core = expert_shard_actor;
  using protocol = di::protocol<reacts_to<proto::expert_batch>,        // compute this
                                reacts_to<proto::ask_call>,            // what became of a call
                                reacts_to<proto::placement_proposed>,  // what will live here
                                reacts_to<proto::placement_published>, // what lives here
                                reacts_to<proto::placement_settled>,   // what lives here no more
                                reacts_to<proto::view_committed>,      // whose calls count
                                reacts_to<proto::work_due>,            // go on
                                replies_to<proto::get_shard>::with<proto::shard_state>>;
};

/// Ready for system::spawn(). Made in serving.cpp.
std::unique_ptr<core_handle> make_expert_shard(shard_parts parts);

} // namespace di::actors
