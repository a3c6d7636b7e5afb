// SPDX-License-Identifier: Apache-2.0
// Messages of DIRECTORY (0x07): which process lives where, and in which life.
#pragma once

#include "messaging/proto/message.hpp"

#include <string>
#include <vector>

namespace di::proto {

/// A process as others need to know it.
struct process_entry {
  address prefix;               ///< all paths at or below it live there, e.g. "/rank/3"
  incarnation life{};           ///< of the process
  std::string control_endpoint; ///< ipc:// or tcp://
  std::string bulk_endpoint;
  std::string curve_key; ///< public key (Z85), empty on ipc
  node_id node;
  std::string role;        ///< control, node, rank or gateway
  rank_id rank;            ///< role rank only
  std::string contract_id; ///< role rank only: kernels, device family, checkpoint; all must agree
  std::vector<address> aliases; ///< further prefixes that live there, e.g. "/gateway/0"
  std::string proof; ///< role rank only: digest of what it computes for a known token sequence; all
                     ///< must agree
  friend bool operator==(const process_entry&, const process_entry&) = default;
  DI_FIELDS(process_entry, m.prefix, m.life, m.control_endpoint, m.bulk_endpoint, m.curve_key,
            m.node, m.role, m.rank, m.contract_id, m.aliases, m.proof)
};

struct announce {
  static constexpr wire_id wire{0x0701};
  static constexpr std::string_view doc =
      "Question of a starting process: here I am, may I join. Repeating it changes nothing. "
      "Overload: one per process and second.";
  process_entry process;
  DI_FIELDS(announce, m.process)
};

struct announced {
  static constexpr wire_id wire{0x0702};
  static constexpr std::string_view doc = "Answer to announce: known from now on.";
  epoch version{};            ///< of the directory
  std::uint32_t present = 0;  ///< expected processes that are there
  std::uint32_t expected = 0; ///< processes that DIRECTORY waits for
  DI_FIELDS(announced, m.version, m.present, m.expected)
};

struct directory_snapshot {
  static constexpr wire_id wire{0x0703};
  static constexpr std::string_view doc =
      "Question of DIRECTORY to each process's registrar, and answer to get_directory: all "
      "processes; install the routes. Overload: one per change; a newer one replaces it.";
  epoch version{};
  std::vector<process_entry> processes; ///< in order of their prefixes
  DI_FIELDS(directory_snapshot, m.version, m.processes)
};

struct snapshot_installed {
  static constexpr wire_id wire{0x0704};
  static constexpr std::string_view doc = "Answer to directory_snapshot: its routes are in place.";
  epoch version{};
  address prefix;     ///< of the answering process
  incarnation life{}; ///< of the answering process
  DI_FIELDS(snapshot_installed, m.version, m.prefix, m.life)
};

struct resolve {
  static constexpr wire_id wire{0x0705};
  static constexpr std::string_view doc =
      "Question: which process does this path belong to. Refused with not_found. Overload: none.";
  address path;
  DI_FIELDS(resolve, m.path)
};

struct resolved {
  static constexpr wire_id wire{0x0706};
  static constexpr std::string_view doc = "Answer to resolve: the process with the longest prefix.";
  process_entry process;
  DI_FIELDS(resolved, m.process)
};

struct withdrawn {
  static constexpr wire_id wire{0x0707};
  static constexpr std::string_view doc =
      "Fact of a node process: this life has ended; DIRECTORY forgets it and passes the fact on to "
      "all registrars. Overload: one per life.";
  address prefix;
  incarnation life{};
  std::string reason;
  DI_FIELDS(withdrawn, m.prefix, m.life, m.reason)
};

struct group_formed {
  static constexpr wire_id wire{0x0708};
  static constexpr std::string_view doc =
      "Fact of DIRECTORY: all expected processes are there and have installed each other's routes. "
      "Overload: once.";
  epoch version{};
  std::vector<process_entry> processes;
  epoch view{}; ///< newest view that any of them works under; 0: none
  DI_FIELDS(group_formed, m.version, m.processes, m.view)
};

struct get_directory {
  static constexpr wire_id wire{0x0709};
  static constexpr std::string_view doc = "Question: all processes known now. Overload: none.";
  DI_FIELDS(get_directory)
};

struct process_ready {
  static constexpr wire_id wire{0x070A};
  static constexpr std::string_view doc =
      "Fact of DIRECTORY to KEEPER: a process that came after the group had formed is known to all "
      "registrars. Overload: one per life; sent again until /control/keeper is there.";
  process_entry process;
  DI_FIELDS(process_ready, m.process)
};

struct control_moved {
  static constexpr wire_id wire{0x070B};
  static constexpr std::string_view doc =
      "Fact of the node process to a registrar: the control process was started again and is this "
      "life. The registrar routes to it and announces its process anew. Overload: one per life.";
  process_entry control;
  DI_FIELDS(control_moved, m.control)
};

using directory_messages =
    type_list<announce, announced, directory_snapshot, snapshot_installed, resolve, resolved,
              withdrawn, group_formed, get_directory, process_ready, control_moved>;

} // namespace di::proto
