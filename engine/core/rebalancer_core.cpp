// SPDX-License-Identifier: Apache-2.0
// Publishing a placement until everyone follows it.
#include "engine/core/rebalancer_core.hpp"

#include "engine/core/expert_shard_core.hpp" // rank_path, shard_path

namespace di::engine {

result<void> rebalancer_core::install_view(epoch view, std::span<const placed_rank> ranks, instant,
                                           outbox& out) {
  if (placement_.ranks() > 0 && view <= placement_.view())
    return {};
  const epoch version{placement_.version().v + 1};
  DI_TRY(placement_,
         placement::contiguous(options_.groups, ranks, options_.redundant, version, view));
  waiting_.clear();
  for (const placed_rank& r : ranks) {
    waiting_.insert(rank_path(r.rank));
    waiting_.insert(shard_path(r.rank));
  }
  out.count("di_rebalancer_placements_total");
  publish(out);
  return {};
}

result<void> rebalancer_core::on(const proto::view_committed& m, instant now, outbox& out) {
  std::vector<placed_rank> ranks;
  for (const proto::view_member& member : m.members)
    ranks.push_back({member.rank, member.life});
  return install_view(m.view, ranks, now, out);
}

void rebalancer_core::publish(outbox& out) {
  for (const address& who : waiting_)
    out.send(who, placement_.published());
  out.arm({resend_due, placement_.version().v}, options_.resend_after);
}

result<void> rebalancer_core::on(const proto::placement_installed& m, instant, outbox& out) {
  if (m.placement != placement_.version() || waiting_.erase(m.who) == 0 || !waiting_.empty())
    return {};
  proto::placement_settled settled{placement_.version(), placement_.view(),
                                   placement_.published().ranks, placement_.published().lives};
  for (const address& who : options_.listeners)
    out.send(who, settled);
  return {};
}

result<void> rebalancer_core::on(const proto::placement_prepared&, instant, outbox&) {
  return {};
}

result<void> rebalancer_core::on(const proto::expert_load&, instant, outbox&) {
  return {};
}

result<void> rebalancer_core::on_due(timer which, instant, outbox& out) {
  if (which.kind == resend_due && which.key == placement_.version().v && !waiting_.empty())
    publish(out);
  return {};
}

void rebalancer_core::check() const {
  DI_CHECK(waiting_.size() <= 2 * placement_.ranks());
}

} // namespace di::engine
