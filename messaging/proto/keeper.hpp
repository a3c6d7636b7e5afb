// SPDX-License-Identifier: Apache-2.0
// Messages of KEEPER (0x0B): which rank processes shall run, and the operator's orders about them.
#pragma once

#include "messaging/proto/message.hpp"

#include <string>
#include <vector>

namespace di::proto {

struct scale_group {
  static constexpr wire_id wire{0x0B01};
  static constexpr std::string_view doc =
      "Question of an operator: this many ranks from now on. Fewer: the highest are drained and "
      "leave; more: the lowest missing are started and join. Answered by keeper_done when it is "
      "so, "
      "refused with bad_argument (outside min_ep and the topology's ranks) or unavailable (another "
      "order is under way). Overload: one at a time.";
  std::uint32_t ranks = 0;
  DI_FIELDS(scale_group, m.ranks)
};

struct drain_member {
  static constexpr wire_id wire{0x0B02};
  static constexpr std::string_view doc =
      "Question of an operator: this rank finishes or hands over its requests, leaves the view and "
      "ends. Answered by keeper_done. Overload: one at a time.";
  rank_id rank;
  DI_FIELDS(drain_member, m.rank)
};

struct join_member {
  static constexpr wire_id wire{0x0B03};
  static constexpr std::string_view doc =
      "Question of an operator: bring this rank back now, whatever its quarantine or `rejoin: "
      "manual` says. Answered by keeper_done when it is in the view. Overload: one at a time.";
  rank_id rank;
  DI_FIELDS(join_member, m.rank)
};

struct upgrade_group {
  static constexpr wire_id wire{0x0B04};
  static constexpr std::string_view doc =
      "Question of an operator: restart all ranks one after the other, each drained before and "
      "back "
      "in the view after. Answered by keeper_done. Overload: one at a time.";
  DI_FIELDS(upgrade_group)
};

struct keeper_done {
  static constexpr wire_id wire{0x0B05};
  static constexpr std::string_view doc = "Answer to an operator's order: it is so.";
  std::uint32_t ranks = 0; ///< in the view now
  epoch view{};
  DI_FIELDS(keeper_done, m.ranks, m.view)
};

struct get_keeper {
  static constexpr wire_id wire{0x0B06};
  static constexpr std::string_view doc = "Question: which ranks are there, and how are they. "
                                          "Overload: none.";
  DI_FIELDS(get_keeper)
};

/// One rank as KEEPER sees it.
struct kept_rank {
  rank_id rank;
  node_id node;
  incarnation life{};
  std::string state;         ///< see engine/core/keeper_core.hpp, e.g. member, proving, quarantined
  std::uint32_t deaths = 0;  ///< of its lives
  std::uint32_t starts = 0;  ///< after the first
  std::uint64_t wait_ms = 0; ///< [ms] until the next start
  std::string last_reason;   ///< of the last end
  DI_FIELDS(kept_rank, m.rank, m.node, m.life, m.state, m.deaths, m.starts, m.wait_ms,
            m.last_reason)
};

struct keeper_state {
  static constexpr wire_id wire{0x0B07};
  static constexpr std::string_view doc = "Answer to get_keeper.";
  epoch view{};
  std::uint32_t wanted = 0; ///< ranks that shall be in the view
  std::string order;        ///< the operator's order under way; empty: none
  std::vector<kept_rank> ranks;
  DI_FIELDS(keeper_state, m.view, m.wanted, m.order, m.ranks)
};

struct kill_member {
  static constexpr wire_id wire{0x0B08};
  static constexpr std::string_view doc =
      "Question of an operator: end the process of this rank with SIGKILL, as a test; it counts as "
      "a death. Answered by keeper_done when the signal is on its way. Overload: none.";
  rank_id rank;
  DI_FIELDS(kill_member, m.rank)
};

using keeper_messages = type_list<scale_group, drain_member, join_member, upgrade_group,
                                  keeper_done, get_keeper, keeper_state, kill_member>;

} // namespace di::proto
