// SPDX-License-Identifier: Apache-2.0
// One cluster from its first process to its last, for `dilaunch run` and `up`: this process is
// node 0.
#pragma once

#include "launch/boot.hpp"
#include "launch/plan.hpp"
#include "launch/topology.hpp"
#include "messaging/base/result.hpp"

#include <optional>
#include <string>
#include <vector>

namespace di::launch {

/// Exit codes of dilaunch (design 11).
enum exit_code : int {
  exit_done = 0,
  exit_usage = 2,           ///< bad arguments or topology
  exit_gave_up = 3,         ///< a subtree gave up
  exit_check_failed = 4,    ///< a check failed
  exit_requests_failed = 5, ///< finished with failed requests
};

/// One gateway's listening sockets. Owned by the caller of run_cluster().
struct gateway_sockets {
  std::vector<int> http, admin; ///< admin: of the first gateway only
  std::uint32_t http_port = 0;
};

/// What `dilaunch up` serves with: one entry per gateway.
struct serve_options {
  std::vector<gateway_sockets> gateways;
  std::uint32_t admin_port = 0;
  std::vector<std::string> urls; ///< for people, where clients connect
  std::string admin_url;
};

struct cluster_options {
  topology config;
  std::string topology_text; ///< content of config.file; children read it again
  std::vector<std::string> sets;
  cluster_plan plan;
  std::string program;                 ///< runs `child <role> <index>` and `node`; absolute
  batch_boot batch;                    ///< of `dilaunch run`
  std::optional<serve_options> serve;  ///< then there is no batch
  int lines_to = 1;                    ///< gets the lines of a batch without an output file
  std::optional<journal_boot> journal; ///< with an empty folder: in the run directory
  std::string log_dir;   ///< logs are kept there; empty: in the run directory, gone at the end
  bool quiet = false;    ///< logs only to files
  std::string log_level; ///< for all processes
  std::uint32_t trace_spans = 0; ///< ring of each process; 0: no trace. batch.trace gets the rings
  std::string token_file;        ///< agent launcher: written with mode 0600, removed at the end
};

/// Runs until the batch is done (serving: until a signal or an order) or something died; prints
/// logs and, last, the reason of a failure on stderr. Every process has ended and the run directory
/// is gone when it returns.
///
/// Call on the main thread of a process without other threads or children.
/// @return an exit_code
int run_cluster(cluster_options options);

} // namespace di::launch
