// SPDX-License-Identifier: Apache-2.0
// CHRONICLE: writes into the log what happens to the group, for operators and for dichaos.
#pragma once

#include "actors/kit.hpp"
#include "messaging/base/log.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace di::actors {

class chronicle_core {
public:
  void on(const proto::view_committed& m, instant, outbox&) {
    std::string lives; // 0:1a2b,1:3c4d
    for (const proto::view_member& member : m.members)
      lives += fmt::format("{}{}:{:x}", lives.empty() ? "" : ",", member.rank.v, member.life.v);
    log::info("view_committed",
              {{"view", m.view.v}, {"members", m.members.size()}, {"lives", lives}});
  }
  void on(const proto::placement_settled& m, instant, outbox&) {
    log::info("placement_settled",
              {{"view", m.view.v}, {"placement", m.placement.v}, {"ranks", m.ranks.size()}});
  }
  void on(const proto::ranks_slow& m, instant, outbox&) {
    std::string slow; // 1:1000%
    for (std::size_t i = 0; i < std::min(m.ranks.size(), m.percent.size()); ++i)
      slow += fmt::format("{}{}:{}%", slow.empty() ? "" : ",", m.ranks[i].v, m.percent[i]);
    log::warn("ranks_slow", {{"ranks", m.ranks.size()}, {"slow", slow}});
  }
};

struct chronicle {
  static constexpr auto kind = "chronicle";
  using core = chronicle_core;
  using protocol = di::protocol<reacts_to<proto::view_committed>,    // MEMBERSHIP
                                reacts_to<proto::placement_settled>, // REBALANCER
                                reacts_to<proto::ranks_slow>>;       // SCHEDULER
};

} // namespace di::actors
