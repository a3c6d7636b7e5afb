// SPDX-License-Identifier: Apache-2.0
// A load generator: many HTTP/1.1 connections on one thread over epoll, each with one request under
// way. Streams are read event by event.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace di::bench {

struct load {
  std::uint16_t port = 0;
  std::string request;         ///< bytes of one request
  std::size_t connections = 1; ///< requests under way at a time
  std::size_t requests = 0;    ///< in all; 0: until `most` has passed
  std::chrono::milliseconds most{10'000};
  /// Events begin with "data: <monotonic ns>": their age is measured.
  bool stamped = false;
};

struct load_figures {
  double seconds = 0;
  std::size_t answers = 0; ///< whole ones with status 200
  std::size_t others = 0;  ///< whole ones with another status
  std::size_t broken = 0;  ///< connections that ended inside an answer, or were refused
  std::size_t events = 0;
  std::size_t bytes = 0;
  std::vector<double> answer_us;    ///< request sent -> answer whole
  std::vector<double> first_us;     ///< request sent -> first byte of the body
  std::vector<double> event_gap_us; ///< between two events of a stream
  std::vector<double> event_age_us; ///< stamp -> read
};

load_figures run_load(const load& l);

/// [us] of the share `p` of the values; 0 if there are none.
double percentile(std::vector<double>& values, double p);

/// {"p50": .., "p90": .., "p99": .., "max": .., "count": ..}
std::string percentiles_json(std::vector<double>& values);

} // namespace di::bench
