// SPDX-License-Identifier: Apache-2.0
// One run of `dilaunch run` as a child, with the faults of a plan, and all that was seen of it.
#pragma once

#include "chaos/injector.hpp"
#include "chaos/plan.hpp"
#include "chaos/run_log.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace di::chaos {

struct run_options {
  std::string dilaunch;   ///< absolute path
  std::string topology;   ///< file
  std::string prompts;    ///< JSON lines
  std::string home;       ///< folder of this run, exists and is short (sockets lie below it)
  std::string clock_shim; ///< path of the library that shifts the wall clock; empty: none
  node_ranks nodes;
  std::uint32_t ranks = 0;
  bool disturbed = true; ///< false: faults of the plan do not happen
  bool verbose = false;  ///< the run's log goes to stderr too
};

/// What a process held at one moment.
struct process_sample {
  pid_t pid = 0;
  std::size_t descriptors = 0;
};
using samples = std::map<std::string, process_sample>; ///< by "rank 3", "control", "node 1"

struct run_record {
  int exit_code = -1;     ///< 128 + signal if killed
  bool timed_out = false; ///< ended by us after the plan's limit
  std::string answers;    ///< JSON lines
  std::string last_line;  ///< of stderr
  std::vector<log_event> events;
  std::vector<injected> faults;
  std::size_t faults_missing = 0; ///< whose trigger never came
  samples before, after;          ///< just before the first fault; the last look before the end
  std::vector<std::string> leaks; ///< what was left when it had ended
  std::int64_t started_us = 0, ended_us = 0; ///< [us] monotonic
};

/// Blocks until the run has ended and its remains were looked for. Call on the main thread: the
/// child dies with it.
/// @errors io_error: it could not be started
result<run_record> run_once(const plan& p, const run_options& o);

} // namespace di::chaos
