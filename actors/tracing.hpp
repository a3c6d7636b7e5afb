// SPDX-License-Identifier: Apache-2.0
// TRACER, which gives away the ring of its process, and TRACE COLLECTOR, which fetches the rings of
// all processes at the end of a run.
#pragma once

#include "actors/kit.hpp"
#include "messaging/proto/telemetry.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace di::actors {

/// Answers from the process's ring; reading copies at most get_trace::events_max spans.
class tracer_core {
public:
  static constexpr std::uint32_t events_max = 8'192; ///< in one answer: well below a body's bound

  explicit tracer_core(address process);
  result<proto::trace_part> on(const proto::get_trace& m) const;

private:
  address process_;
  std::string host_;
};

struct tracer {
  static constexpr auto kind = "tracer";
  using core = tracer_core;
  using protocol =
      di::protocol<replies_to<proto::get_trace>::with<proto::trace_part>>; // spans of this process
};

struct collector_options {
  std::vector<address> tracers;                ///< of all processes
  duration timeout = std::chrono::seconds{10}; ///< for one answer
  /// Takes each part, on the actor's thread. An error ends the collection.
  std::function<result<void>(const proto::trace_part&)> take;
  /// Told once, when all have answered or cannot; an error names what is missing.
  std::function<void(result<void>)> finished;
};

class trace_collector_core {
public:
  explicit trace_collector_core(collector_options options) : options_{std::move(options)} {}

  result<void> on(const proto::collect_trace& m, instant now, outbox& out);
  result<void> on_answer(std::uint64_t tag, result<parcel> answer, instant now, outbox& out);

private:
  void ask(std::size_t tracer, std::uint64_t first, outbox& out);
  void done(std::size_t tracer, const std::string& missing);

  collector_options options_;
  std::size_t left_ = 0;
  bool begun_ = false;
  std::string missing_; ///< what could not be fetched, in words
};

struct trace_collector {
  static constexpr auto kind = "trace_collector";
  using core = trace_collector_core;
  using protocol = di::protocol<reacts_to<proto::collect_trace>>; // the run has ended
};

std::unique_ptr<core_handle> make_tracer(address process);
std::unique_ptr<core_handle> make_trace_collector(collector_options options);

/// Path of the tracer of a process.
inline address tracer_path(const address& process) {
  return process + "/tracer";
}

} // namespace di::actors
