// SPDX-License-Identifier: Apache-2.0
// What the parts of a step cost on a machine, as tests/bench/cost_table.py measured it, and real
// runs to check a simulation against.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace di::chaos {

/// fixed + per_row * rows + per_position * sum over rows of the context behind them.
struct phase_cost {
  double fixed_us = 0, row_us = 0, row_position_us = 0;

  /// [us]
  double us(double rows, double row_positions = 0) const noexcept {
    return fixed_us + row_us * rows + row_position_us * row_positions;
  }
};

/// A load: every rank gets as many sequences of one size.
struct cost_load {
  std::uint32_t ranks = 8;
  std::uint32_t sequences_per_rank = 2;
  std::uint32_t prompt_tokens = 32;
  std::uint32_t output_tokens = 48;
};

/// What a real run of a load gave.
struct measured_run {
  cost_load load;
  double tokens_per_s = 0;   ///< [tokens/s] of the group while all sequences decode
  double first_token_ms = 0; ///< [ms] median, submitted until the first token
  bool held_out = false;     ///< not for fitting, only to see how good a fit is
};

struct cost_table {
  std::uint32_t layers = 8, experts = 32, experts_per_token = 4; ///< of the model
  std::uint32_t cores = 2;                                       ///< of the host it was measured on
  phase_cost attention;    ///< of a layer, on the rank's thread
  phase_cost dispatch;     ///< of a layer: rows made ready for the shards
  phase_cost experts_call; ///< of a slice on a shard; rows: row and expert pairs
  phase_cost combine;      ///< of an answer on the rank's thread
  phase_cost head;         ///< of a step: logits
  phase_cost sample;       ///< of a step
  double mail_us = 20;     ///< [us] of processor time of a mail to another process, both sides
  double wake_us = 20;     ///< [us] more if the process had nothing to do
  double local_us = 1;     ///< [us] of a mail within a process
  double latency_us = 20;  ///< [us] between processes, in which no processor works on it
  std::vector<measured_run> runs;
};

/// Reads the text of a table. Untrusted.
/// @param name  of the file, for errors
/// @errors      bad_format: what is missing, no number, negative, or of no use
result<cost_table> parse_cost_table(std::string_view text, const std::string& name);

/// The same of a file. @errors io_error, and those of parse_cost_table
result<cost_table> read_cost_table(const std::string& path);

} // namespace di::chaos
