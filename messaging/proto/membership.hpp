// SPDX-License-Identifier: Apache-2.0
// Messages of MEMBERSHIP (0x06): the view, and what may change it.
#pragma once

#include "messaging/proto/message.hpp"

#include <string>
#include <vector>

namespace di::proto {

struct view_member {
  rank_id rank;
  node_id node;
  incarnation life{};
  address prefix; ///< of its process
  friend bool operator==(const view_member&, const view_member&) = default;
  DI_FIELDS(view_member, m.rank, m.node, m.life, m.prefix)
};

struct view_committed {
  static constexpr wire_id wire{0x0601};
  static constexpr std::string_view doc =
      "Fact of MEMBERSHIP, and answer to get_view: from now on this group. Whoever holds a newer "
      "view ignores it. Overload: one per change.";
  epoch view{};                     ///< from 1, rises by one
  std::vector<view_member> members; ///< in order of their ranks
  DI_FIELDS(view_committed, m.view, m.members)
};

struct get_view {
  static constexpr wire_id wire{0x0602};
  static constexpr std::string_view doc = "Question: the view that holds now. Refused with "
                                          "unavailable before the first. Overload: none.";
  DI_FIELDS(get_view)
};

struct member_lost {
  static constexpr wire_id wire{0x0603};
  static constexpr std::string_view doc =
      "Fact of a node process: this life of a rank is certainly over. Another life than the view's "
      "is dropped and counted. Overload: one per life.";
  rank_id rank;
  incarnation life{};
  std::string reason;
  DI_FIELDS(member_lost, m.rank, m.life, m.reason)
};

struct member_suspected {
  static constexpr wire_id wire{0x0604};
  static constexpr std::string_view doc =
      "Fact of anyone: this life does not answer; a hint that expels nobody. Overload: counted.";
  rank_id rank;
  incarnation life{};
  address by;
  std::string reason;
  DI_FIELDS(member_suspected, m.rank, m.life, m.by, m.reason)
};

struct check_member {
  static constexpr wire_id wire{0x0605};
  static constexpr std::string_view doc =
      "Question: is this life part of the view that holds. Refused with stale_incarnation if not. "
      "Overload: none.";
  rank_id rank;
  incarnation life{};
  DI_FIELDS(check_member, m.rank, m.life)
};

struct member_confirmed {
  static constexpr wire_id wire{0x0606};
  static constexpr std::string_view doc = "Answer to check_member: it is.";
  epoch view{};
  DI_FIELDS(member_confirmed, m.view)
};

struct member_stuck {
  static constexpr wire_id wire{0x0607};
  static constexpr std::string_view doc =
      "Fact of a node process: this life has work, could run, and makes no progress beyond its "
      "phase's limit. MEMBERSHIP expels it; slow is not stuck. Overload: one per life and second.";
  rank_id rank;
  incarnation life{};
  std::string phase;          ///< what it was doing
  std::uint32_t stuck_ms = 0; ///< [ms] without progress, in which it could run
  std::string reason;
  DI_FIELDS(member_stuck, m.rank, m.life, m.phase, m.stuck_ms, m.reason)
};

struct admit_member {
  static constexpr wire_id wire{0x0608};
  static constexpr std::string_view doc =
      "Command of KEEPER: a fresh life is loaded, proved and reachable by all; the next view has "
      "it. In place of a dead life of the same rank under `restart`. Overload: one at a time.";
  view_member member;
  DI_FIELDS(admit_member, m.member)
};

struct dismiss_member {
  static constexpr wire_id wire{0x0609};
  static constexpr std::string_view doc =
      "Command of KEEPER: go on without this life: it was drained, or nobody will bring its rank "
      "back. Another life than the view's is dropped and counted. Overload: none.";
  rank_id rank;
  incarnation life{};
  std::string reason;
  DI_FIELDS(dismiss_member, m.rank, m.life, m.reason)
};

struct replace_group {
  static constexpr wire_id wire{0x060A};
  static constexpr std::string_view doc =
      "Command of KEEPER: the next view is exactly these lives (restart_smaller). Overload: none.";
  std::vector<view_member> members;
  std::string reason;
  DI_FIELDS(replace_group, m.members, m.reason)
};

using membership_messages =
    type_list<view_committed, get_view, member_lost, member_suspected, check_member,
              member_confirmed, member_stuck, admit_member, dismiss_member, replace_group>;

} // namespace di::proto
