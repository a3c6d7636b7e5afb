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

using membership_messages = type_list<view_committed, get_view, member_lost, member_suspected,
                                      check_member, member_confirmed>;

} // namespace di::proto
