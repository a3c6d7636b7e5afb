// SPDX-License-Identifier: Apache-2.0
// Topology keys `supervisor.*` as options of cores.
#include "launch/control_settings.hpp"

#include <fmt/format.h>

namespace di::launch {
namespace {

engine::on_loss loss_of(rank_loss policy) {
  switch (policy) {
  case rank_loss::shrink:
    return engine::on_loss::shrink;
  case rank_loss::restart:
    return engine::on_loss::restart;
  case rank_loss::restart_smaller:
    return engine::on_loss::restart_smaller;
  }
  return engine::on_loss::shrink;
}

} // namespace

engine::directory_options directory_of(const topology& t, const boot_config& boot) {
  engine::directory_options d;
  d.expected = {"/control"};
  if (boot.recovering) {
    for (const auto& r : boot.recovering->ranks)
      if (r.ready)
        d.expected.push_back(fmt::format("/rank/{}", r.rank));
    d.forms_without_lost = true;
  } else {
    for (std::uint32_t r = 0; r < t.ep; ++r)
      d.expected.push_back(fmt::format("/rank/{}", r));
  }
  d.formed_to = {"/control/keeper", "/control/membership"};
  d.ready_to = {"/control/keeper"};
  d.gateway_lost_to = {"/control/journal"};
  d.form_within = t.start_timeout;
  return d;
}

engine::membership_options membership_of(const topology& t) {
  engine::membership_options m;
  m.listeners = {"/control/keeper", "/control/rebalancer", "/control/chronicle",
                 "/control/scheduler", "/control/journal"};
  m.member_parts = {"rank", "expert_shard", "kv_agent", "registrar"};
  m.loss = loss_of(t.on_rank_loss);
  m.members_min = t.min_ep;
  m.journal = "/control/journal";
  m.directory = "/control/directory";
  m.keeper = "/control/keeper";
  m.evidence_window = t.evidence_window;
  return m;
}

engine::keeper_options keeper_of(const topology& t, const cluster_plan& plan, incarnation life) {
  engine::keeper_options k;
  for (const auto& r : plan.ranks)
    k.ranks.push_back({rank_id{r.rank}, node_id{r.node}});
  k.loss = loss_of(t.on_rank_loss);
  k.members_min = t.min_ep;
  k.rejoin = t.rejoin;
  k.restarts_max = t.restart_max;
  k.restart_window = t.restart_window;
  k.backoff_first = t.restart_backoff;
  k.backoff_max = t.restart_backoff_max;
  k.quarantine = t.quarantine;
  k.join_timeout = t.join_timeout;
  k.drain_timeout = t.drain_timeout;
  k.seed = life.v;
  return k;
}

} // namespace di::launch
