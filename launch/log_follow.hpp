// SPDX-License-Identifier: Apache-2.0
// `dilaunch logs`: the log files of a run's processes in the order of their lines' times.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace di::launch {

struct log_follow_options {
  std::string folder; ///< of <process>.log files
  std::string role;   ///< control, rank, gateway, dilaunch; empty: all
  std::optional<std::uint32_t> rank;
  std::string grep;          ///< lines with this text only
  std::uint64_t lines = 200; ///< last lines of each file; 0: all
  bool follow = false;
  std::int64_t pid = 0; ///< with follow: until this process has ended; 0: for ever
};

/// Writes "[process] line" lines. @errors io_error, not_found (no folder)
result<void> follow_logs(const log_follow_options& o, int to);

} // namespace di::launch
