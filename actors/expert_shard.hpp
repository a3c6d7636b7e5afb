// SPDX-License-Identifier: Apache-2.0
// EXPERT_SHARD: owns an expert runner with a stream of its own and answers expert calls of every
// rank. Spawned detached; never waits for another actor.
#pragma once

#include "actors/kit.hpp"
#include "engine/core/expert_shard_core.hpp"
#include "engine/model/step.hpp"
#include "messaging/proto/expert_shard.hpp"

#include <memory>

namespace di::actors {

struct shard_parts {
  engine::shard_options options;
  std::shared_ptr<engine::expert_runner> runner; ///< used on the actor's thread only
};

/// Computes one slice, then reads its mail, then the next: decode rows that come meanwhile overtake
/// the slices of a long prompt.
class expert_shard_actor {
public:
  explicit expert_shard_actor(shard_parts parts);

  result<void> on(const proto::expert_batch& m, instant now, outbox& out);
  result<void> on(const proto::ask_call& m, instant now, outbox& out);
  result<void> on(const proto::placement_published& m, instant now, outbox& out);
  result<void> on(const proto::work_due& m, instant now, outbox& out);
  result<proto::shard_state> on(const proto::get_shard& m) const;
  void check() const { core_.check(); }

private:
  void wake(outbox& out);

  shard_parts parts_;
  engine::expert_shard_core core_;
  std::vector<engine::expert_job> jobs_;
  std::uint64_t turn_ = 0;
  bool work_sent_ = false;
};

struct expert_shard {
  static constexpr auto kind = "expert_shard";
  using core = expert_shard_actor;
  using protocol = di::protocol<reacts_to<proto::expert_batch>,        // compute this
                                reacts_to<proto::ask_call>,            // what became of a call
                                reacts_to<proto::placement_published>, // what lives here
                                reacts_to<proto::work_due>,            // go on
                                replies_to<proto::get_shard>::with<proto::shard_state>>;
};

/// Ready for system::spawn(). Made in serving.cpp.
std::unique_ptr<core_handle> make_expert_shard(shard_parts parts);

} // namespace di::actors
