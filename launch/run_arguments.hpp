// SPDX-License-Identifier: Apache-2.0
// What the commands that run a batch have in common: run, bench.
#pragma once

#include "launch/cluster.hpp"
#include "launch/run_files.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace di::launch {

/// Options of `dilaunch run`, as given.
struct run_arguments {
  std::string topology, prompts, output, log_dir, log_level, token_file, speculation, trace;
  std::string journal, resume; ///< folders; resume: or a file of one
  std::uint32_t trace_spans = 65'536;
  std::vector<std::string> sets;
  bool quiet = false;
  std::uint32_t window = 0;
};

/// Topology, model and plan of `run` and `up`; nothing about a batch or a journal. Notes on foreign
/// switches go to stderr.
///
/// @return the checkpoint's contract @errors bad_config, bad_argument, io_error
result<std::string> common_options_of(const run_arguments& a, cluster_options& o);

/// Topology, model, plan and files: all that is checked before a process starts. Notes on foreign
/// switches go to stderr.
///
/// @param files  owns the descriptors; lives as long as the run
/// @errors       bad_config, bad_argument, io_error
result<cluster_options> cluster_options_of(const run_arguments& a, run_files& files);

} // namespace di::launch
