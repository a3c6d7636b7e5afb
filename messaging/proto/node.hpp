// SPDX-License-Identifier: Apache-2.0
// Messages between the launcher and node processes that joined as agents (0x0C).
#pragma once

#include "messaging/base/error.hpp"
#include "messaging/proto/message.hpp"

#include <string>

namespace di::proto {

struct join_cluster {
  static constexpr wire_id wire{0x0C01};
  static constexpr std::string_view doc =
      "Question of an agent: which node of the cluster am I. Refused with not_found or duplicate. "
      "Overload: one per agent and second.";
  std::string host;        ///< name of its host
  std::int64_t node = -1;  ///< the node it wants to be (Slurm says so), or -1: by host name
  std::uint32_t cores = 0; ///< of its host
  address prefix;          ///< of the agent's process; routes back to it
  incarnation life{};
  std::string control_endpoint;
  std::string bulk_endpoint;
  std::string curve_key; ///< public key (Z85)
  DI_FIELDS(join_cluster, m.host, m.node, m.cores, m.prefix, m.life, m.control_endpoint,
            m.bulk_endpoint, m.curve_key)
};

struct cluster_joined {
  static constexpr wire_id wire{0x0C02};
  static constexpr std::string_view doc = "Answer to join_cluster.";
  node_id node;
  DI_FIELDS(cluster_joined, m.node)
};

struct node_line {
  static constexpr wire_id wire{0x0C03};
  static constexpr std::string_view doc =
      "Fact: one line of the launch protocol, an order or a report as JSON, the same that a node "
      "process takes on stdin. Overload: logs of the node's children; the link's credits bound it.";
  std::string line;
  DI_FIELDS(node_line, m.line)
};

struct start_rank {
  static constexpr wire_id wire{0x0C04};
  static constexpr std::string_view doc =
      "Question of KEEPER to /node/<n>: start a fresh life of this rank. The node process draws "
      "the "
      "life and makes its sockets and segments. Refused with duplicate if one runs. Overload: one "
      "per rank.";
  rank_id rank;
  DI_FIELDS(start_rank, m.rank)
};

struct rank_started {
  static constexpr wire_id wire{0x0C05};
  static constexpr std::string_view doc = "Answer to start_rank: the process runs, and loads.";
  rank_id rank;
  incarnation life{};
  DI_FIELDS(rank_started, m.rank, m.life)
};

struct kill_rank {
  static constexpr wire_id wire{0x0C06};
  static constexpr std::string_view doc =
      "Command of KEEPER to /node/<n>: end this life with SIGKILL (it is fenced), or SIGTERM if "
      "`politely`; rank_exited follows. Another life is ignored. Overload: none.";
  rank_id rank;
  incarnation life{};
  bool politely = false;
  std::string reason;
  DI_FIELDS(kill_rank, m.rank, m.life, m.politely, m.reason)
};

struct rank_exited {
  static constexpr wire_id wire{0x0C07};
  static constexpr std::string_view doc =
      "Fact of /node/<n> to KEEPER: the process is reaped, nothing of it is left. member_lost to "
      "MEMBERSHIP came before, with the death certificate. Overload: one per life.";
  rank_id rank;
  node_id node;
  incarnation life{};
  std::int32_t code = 0;   ///< exit code, if signal is 0
  std::int32_t signal = 0; ///< that ended it
  std::string words;       ///< how it ended, for people
  DI_FIELDS(rank_exited, m.rank, m.node, m.life, m.code, m.signal, m.words)
};

struct start_failed {
  static constexpr wire_id wire{0x0C08};
  static constexpr std::string_view doc =
      "Fact of a node process to its proxy /node/<n>: start_rank cannot be done; the question is "
      "refused with this. Overload: one per start_rank.";
  rank_id rank;
  ec code = ec::internal;
  std::string what;
  DI_FIELDS(start_failed, m.rank, m.code, m.what)
};

using node_messages = type_list<join_cluster, cluster_joined, node_line, start_rank, rank_started,
                                kill_rank, rank_exited, start_failed>;

} // namespace di::proto
