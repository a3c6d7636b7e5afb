// SPDX-License-Identifier: Apache-2.0
// `dilaunch checkpoint make` and `dilaunch checkpoint check`.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace di::launch {

struct checkpoint_make_options {
  std::string preset;      ///< name of a built-in configuration; or else
  std::string config_file; ///< a config.json of one's own
  std::string out;         ///< directory to write; empty with dry_run
  std::uint64_t seed = 1;
  std::uint32_t shards = 1; ///< [files]
  unsigned threads = 0;     ///< 0: as many as the machine has cores
  bool dry_run = false;     ///< only totals
  bool list = false;        ///< print every tensor
  bool force = false;       ///< write although the directory holds a checkpoint
};

struct checkpoint_check_options {
  std::string dir;
  std::uint32_t ep = 1;        ///< [ranks] for the memory lines
  std::uint32_t redundant = 0; ///< [experts] per layer
  std::int64_t context = 0;    ///< [tokens] for the KV line; 0: the model's maximum
  bool values = false;         ///< read all data and look for NaN
};

/// Reports on stdout, errors and progress on stderr; a progress bar only on a terminal.
/// @return exit code: 0 done, 2 bad arguments, an illegal config or no directory to write to, 4
/// writing failed
int run_checkpoint_make(const checkpoint_make_options& options);

/// Prints the report, then every defect.
/// @return exit code: 0 sound, 2 bad arguments, 4 a defect
int run_checkpoint_check(const checkpoint_check_options& options);

/// Adds the subcommand "checkpoint" with make and check; what was chosen runs at once during
/// parsing and leaves its exit code in `exit_code`, which must outlive the parsing.
/// @return the subcommand, for further commands under it
CLI::App& add_checkpoint_commands(CLI::App& app, int& exit_code);

} // namespace di::launch
