// SPDX-License-Identifier: Apache-2.0
// Messages of TELEMETRY (0x09): counters of processes and their sums, and their rings of
// trace spans.
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

/// One span of a ring. @see messaging/base/trace.hpp
struct trace_event {
  std::uint8_t what = 0;     ///< trace::kind
  std::uint16_t track = 0;   ///< index into trace_part::tracks
  std::int64_t begin_ns = 0; ///< [ns] monotonic clock of the host
  std::int64_t end_ns = 0;   ///< [ns]
  request_id flow;           ///< 0: of no single request
  std::uint32_t rows = 0;
  std::int32_t layer = -1; ///< -1: of none
  float value = 0;         ///< what it is depends on `what`
  DI_FIELDS(trace_event, m.what, m.track, m.begin_ns, m.end_ns, m.flow, m.rows, m.layer, m.value)
};

struct get_trace {
  static constexpr wire_id wire{0x0904};
  static constexpr std::string_view doc =
      "Question to a process's tracer: spans of its ring from a number on. Overload: one at a time "
      "and process.";
  std::uint64_t first = 0;      ///< number of the first span that is wanted
  std::uint32_t events_max = 0; ///< in the answer
  bool stop = false;            ///< record no more, so that the rings of a run end together
  DI_FIELDS(get_trace, m.first, m.events_max, m.stop)
};

struct trace_part {
  static constexpr wire_id wire{0x0905};
  static constexpr std::string_view doc = "Answer to get_trace.";
  address process;               ///< prefix of the process
  std::string host;              ///< equal ones share a monotonic clock
  std::int64_t monotonic_ns = 0; ///< [ns] both clocks at one moment
  std::int64_t wall_ns = 0;      ///< [ns] since 1970
  std::uint64_t next = 0;        ///< number to go on with
  std::uint64_t lost = 0;        ///< spans below `next` that were asked for and are overwritten
  bool more = false;             ///< the ring holds spans from `next` on
  std::vector<std::string> tracks;
  std::vector<trace_event> events; ///< oldest first by their ends
  DI_FIELDS(trace_part, m.process, m.host, m.monotonic_ns, m.wall_ns, m.next, m.lost, m.more,
            m.tracks, m.events)
};

struct collect_trace {
  static constexpr wire_id wire{0x0906};
  static constexpr std::string_view doc =
      "Command to the trace collector: fetch the rings of all processes, then say so. Overload: "
      "once per run, repeating it changes nothing.";
  DI_FIELDS(collect_trace)
};

struct get_metrics {
  static constexpr wire_id wire{0x0907};
  static constexpr std::string_view doc = "Question to a gateway process, at <prefix>/metrics: its "
                                          "page for Prometheus. Overload: none.";
  DI_FIELDS(get_metrics)
};

struct metrics_text {
  static constexpr wire_id wire{0x0908};
  static constexpr std::string_view doc = "Answer to get_metrics.";
  std::string text; ///< Prometheus text format 0.0.4; every series has the label `gateway`
  DI_FIELDS(metrics_text, m.text)
};

using telemetry_messages = type_list<sample, get_snapshot, snapshot, get_trace, trace_part,
                                     collect_trace, get_metrics, metrics_text>;

} // namespace di::proto
