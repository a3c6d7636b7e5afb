// SPDX-License-Identifier: Apache-2.0
// Decisions of REBALANCER: which rank holds which expert. For now contiguous blocks, once per view;
// load plays no part yet.
#pragma once

#include "engine/moe/placement.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/outbox.hpp"

#include <set>
#include <span>
#include <vector>

namespace di::engine {

struct rebalancer_options {
  std::vector<expert_layers> groups; ///< of the model
  std::uint32_t redundant = 0;       ///< copies beyond one per expert
  std::vector<address> listeners = {"/control/scheduler", "/gateway/0"}; ///< get placement_settled
  duration resend_after = std::chrono::milliseconds{250};
};

///   idle --view--> publishing --all ranks and shards installed it--> settled --newer view-->
///   publishing
///
/// Owned by one shell, used on its thread only.
class rebalancer_core {
public:
  explicit rebalancer_core(rebalancer_options options) : options_{std::move(options)} {}

  /// A view took effect. @errors those of placement::contiguous
  result<void> install_view(epoch view, std::span<const placed_rank> ranks, instant now,
                            outbox& out);
  result<void> on(const proto::view_committed& m, instant now, outbox& out);
  result<void> on(const proto::placement_prepared& m, instant now, outbox& out);
  result<void> on(const proto::placement_installed& m, instant now, outbox& out);
  result<void> on(const proto::expert_load& m, instant now, outbox& out);
  result<void> on_due(timer which, instant now, outbox& out);
  bool settled() const noexcept { return waiting_.empty() && placement_.ranks() > 0; }
  const placement& current() const noexcept { return placement_; }
  void check() const;

private:
  enum timer_kind : std::uint32_t { resend_due = 1 };
  void publish(outbox& out);

  rebalancer_options options_;
  placement placement_;
  std::set<address> waiting_; ///< who has not installed it
};

} // namespace di::engine
