// SPDX-License-Identifier: Apache-2.0
// The listening sockets of `dilaunch up`: bound before anything starts, kept through all lives of
// the gateways.
#pragma once

#include "launch/cluster.hpp"
#include "launch/process.hpp"

#include <vector>

namespace di::launch {

/// Owns the descriptors; lives as long as the run.
class listening_sockets {
public:
  /// Binds what the topology says.
  /// @return what run_cluster() is told: descriptors, ports, URLs
  /// @errors bad_config, located: a port is taken or not allowed, no such address
  result<serve_options> open(const topology& t);

private:
  result<std::vector<int>> bind(const topology& t, const char* key, const std::string& host,
                                std::uint32_t& port);

  std::vector<unique_fd> owned_;
};

/// Ports between nodes, which gateways take behind those of ranks and agents.
/// @errors bad_config, located
result<void> check_gateway_ports(const topology& t, const cluster_plan& plan);

/// Keys and TLS files, as a gateway will read them. @errors bad_config, io_error
result<void> check_serving_files(const topology& t);

} // namespace di::launch
