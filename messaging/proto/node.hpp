// SPDX-License-Identifier: Apache-2.0
// Messages between the launcher and node processes that joined as agents (0x0C).
#pragma once

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

using node_messages = type_list<join_cluster, cluster_joined, node_line>;

} // namespace di::proto
