// SPDX-License-Identifier: Apache-2.0
// A load on a simulated group of ranks: how fast it is, for whom, and how even.
#pragma once

#include "chaos/cost_table.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace di::chaos {

struct cost_options {
  cost_load load;
  std::uint32_t ranks_per_host = 1; ///< 0: all on one, and the control process too
  std::uint32_t host_cores = 2;     ///< [processors] of each host
  double skew = 0;                  ///< of the experts' popularity, see expert_lottery
  std::uint32_t redundant = 0;      ///< expert slots beyond one each
  bool rebalance = false;           ///< by load
  std::uint64_t mails_max = 400'000'000;
};

struct cost_outcome {
  double tokens_per_s = 0; ///< [tokens/s] of the group while all sequences decode
  double rank_tokens_per_s = 0;
  double user_tokens_per_s = 0; ///< median of the sequences, after their first tokens
  double first_token_ms = 0;    ///< median
  double first_token_p99_ms = 0;
  double step_ms = 0;       ///< median
  double moe_lb = 1;        ///< see expert_rows_count
  double busy_share = 0;    ///< of the processors of the ranks' hosts
  double control_share = 0; ///< of those of the control process
  double elapsed_ms = 0;    ///< virtual
  std::uint64_t mails = 0;  ///< between processes
};

/// @errors unavailable: an actor failed, or mails_max was not enough; bad_argument
result<cost_outcome> simulate_load(const cost_table& table, const cost_options& options);

/// Fits mail_us, wake_us and latency_us so that the measured loads come out as measured, but for
/// those that are held out.
/// @errors those of simulate_load; not_found: the table has no runs
result<cost_table> calibrate(cost_table table);

/// One line for each measured run: real, simulated, error.
struct cost_comparison {
  measured_run real;
  cost_outcome simulated;
  double rate_error = 0, first_token_error = 0; ///< simulated / real - 1
};
result<std::vector<cost_comparison>> compare(const cost_table& table);

/// First line of the CSV, and a line for one outcome; with line ends.
std::string csv_head();
std::string csv_row(const cost_options& options, const cost_outcome& outcome);

/// A picture of outcomes over the number of ranks: tokens/s per rank and per user, time to the
/// first token, balance.
std::string plot_svg(std::span<const cost_options> options, std::span<const cost_outcome> outcomes);

} // namespace di::chaos
