// SPDX-License-Identifier: Apache-2.0
// Messages of TELEMETRY (0x09): counters of processes and their sums.
#pragma once

#include "messaging/proto/message.hpp"

#include <map>
#include <string>
#include <vector>

namespace di::proto {

struct sample {
  static constexpr wire_id wire{0x0901};
  static constexpr std::string_view doc =
      "Fact of a process's sampler: its counters. Totals, so a lost or repeated one does no harm; "
      "older than the last one is dropped. Overload: one per period and process.";
  address source;                         ///< prefix of the process
  incarnation life{};                     ///< of the process; a new one starts at zero
  std::uint64_t sequence = 0;             ///< rises within a life
  std::map<std::string, double> counters; ///< name -> total since the life began
  DI_FIELDS(sample, m.source, m.life, m.sequence, m.counters)
};

struct get_snapshot {
  static constexpr wire_id wire{0x0902};
  static constexpr std::string_view doc = "Question: the sums now. Overload: none.";
  DI_FIELDS(get_snapshot)
};

struct snapshot {
  static constexpr wire_id wire{0x0903};
  static constexpr std::string_view doc = "Answer to get_snapshot.";
  std::map<std::string, double> counters; ///< name -> sum over all lives of all processes
  std::vector<address> sources;           ///< processes that have reported, in order
  std::uint64_t samples = 0;              ///< taken in
  std::uint64_t dropped = 0;              ///< old ones, and those past the bounds
  DI_FIELDS(snapshot, m.counters, m.sources, m.samples, m.dropped)
};

using telemetry_messages = type_list<sample, get_snapshot, snapshot>;

} // namespace di::proto
