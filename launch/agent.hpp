// SPDX-License-Identifier: Apache-2.0
// `dilaunch agent`: makes this host a node of a run that was started elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace di::launch {

struct agent_options {
  std::string token_file; ///< written by `dilaunch run` with launcher agent
  std::string join;       ///< tcp://host:port; empty: as the token says
  std::int64_t node = -1; ///< which node to be; -1: by host name
  std::string host;       ///< name of this host in the topology; empty: as the system says
  std::chrono::milliseconds wait{60'000}; ///< for the token file and the launcher
};

/// Fills from Slurm's variables what the command line left open: SLURM_NODEID, SLURMD_NODENAME.
void take_slurm(agent_options& options);

/// Serves until the run ends. Call on the main thread of a fresh process.
/// @return an exit code: 0 the run ended, 2 bad arguments, 3 lost or refused
int run_agent(const agent_options& options);

} // namespace di::launch
