// SPDX-License-Identifier: Apache-2.0
// `dilaunch checkpoint verify`: runs a checkpoint and compares with golden vectors of the
// reference.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace di::launch {

struct checkpoint_verify_options {
  std::string dir;      ///< checkpoint
  std::string golden;   ///< folder with NAME.logits.safetensors and NAME.layers.*.safetensors
  unsigned threads = 1; ///< [threads] that compute
};

/// Prints one line per file and statistic, then the first failures with layer, tensor, coordinate
/// and share of the tolerance.
/// @return exit code: 0 agrees, 2 no such checkpoint or no golden vectors, 4 something differs
int run_checkpoint_verify(const checkpoint_verify_options& options);

/// Adds "verify" under the subcommand "checkpoint"; runs during parsing, like its siblings.
void add_verify_command(CLI::App& group, int& exit_code);

} // namespace di::launch
