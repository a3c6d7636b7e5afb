// SPDX-License-Identifier: Apache-2.0
// Messages of SUPERVISOR (0x08): ends and restarts of children.
#pragma once

#include "messaging/base/error.hpp"
#include "messaging/proto/message.hpp"

#include <string>
#include <vector>

namespace di::proto {

struct child_down {
  static constexpr wire_id wire{0x0801};
  static constexpr std::string_view doc = "Fact from a launcher to its supervisor: a life of a "
                                          "child has ended. Overload: one per life.";
  address path;
  std::uint64_t life = 0; ///< as given when it was started; ends of other lives are ignored
  ec code = ec::internal; ///< ec::ok: it ended as planned, which is still an end
  std::string what;
  DI_FIELDS(child_down, m.path, m.life, m.code, m.what)
};

struct child_restarted {
  static constexpr wire_id wire{0x0802};
  static constexpr std::string_view doc =
      "Fact for listeners: a child runs again. Overload: bounded by the restart budgets.";
  address path;
  std::uint64_t life = 0;     ///< the new one, from 1
  std::uint64_t restarts = 0; ///< since the supervisor was started
  std::string reason;         ///< why the life before ended
  DI_FIELDS(child_restarted, m.path, m.life, m.restarts, m.reason)
};

struct subtree_gave_up {
  static constexpr wire_id wire{0x0803};
  static constexpr std::string_view doc =
      "Fact for listeners: a supervisor has used up a budget and ends with its children. Overload: "
      "once.";
  address path; ///< of the supervisor
  std::string reason;
  DI_FIELDS(subtree_gave_up, m.path, m.reason)
};

struct get_children {
  static constexpr wire_id wire{0x0804};
  static constexpr std::string_view doc =
      "Question: who is here, and how are they. Overload: none.";
  DI_FIELDS(get_children)
};

struct child_entry {
  address path;
  std::string kind;
  std::string state; ///< running, stopping, waiting or down
  std::uint64_t life = 0, restarts = 0;
  std::string last_reason; ///< of the last end; empty if there was none
  DI_FIELDS(child_entry, m.path, m.kind, m.state, m.life, m.restarts, m.last_reason)
};

struct children {
  static constexpr wire_id wire{0x0805};
  static constexpr std::string_view doc = "Answer to get_children, in order of starting.";
  std::vector<child_entry> entries;
  DI_FIELDS(children, m.entries)
};

struct kill_child {
  static constexpr wire_id wire{0x0806};
  static constexpr std::string_view doc = "Command: end this child; it counts as a death, so it "
                                          "comes back within its budget. Overload: "
                                          "none.";
  address path;
  std::string reason;
  DI_FIELDS(kill_child, m.path, m.reason)
};

struct stop_children {
  static constexpr wire_id wire{0x0807};
  static constexpr std::string_view doc =
      "Command: end all children, last to first, then yourself. Overload: none.";
  DI_FIELDS(stop_children)
};

using supervisor_messages = type_list<child_down, child_restarted, subtree_gave_up, get_children,
                                      children, kill_child, stop_children>;

} // namespace di::proto
