// SPDX-License-Identifier: Apache-2.0
// What the processes of a run said, as events with monotonic times (doc/operations.md, Logs).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::chaos {

struct log_event {
  std::int64_t mono_us = 0; ///< [us] monotonic clock of the host
  std::string process;      ///< /control, /rank/3
  std::string level;
  std::string name;
  std::map<std::string, std::string, std::less<>> fields;
  std::int64_t wall_us = 0; ///< [us] since 1970, as the process took the time to be

  std::string_view field(std::string_view key) const;
  std::optional<std::int64_t> number(std::string_view key) const;
};

/// One line as the launcher prints it: `[rank 3] time level process event key=value …`. Nothing if
/// it is no log line of a process.
std::optional<log_event> parse_log_line(std::string_view line);

/// Tokens that the batch had given out, of a batch_progress event.
std::optional<std::uint64_t> progress_tokens(const log_event& e);
/// Requests that had ended.
std::optional<std::uint64_t> progress_finished(const log_event& e);

/// What all processes that logged it when they ended counted under this name (log.counters).
double counted(const std::vector<log_event>& events, std::string_view name);

} // namespace di::chaos
