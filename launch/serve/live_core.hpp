// SPDX-License-Identifier: Apache-2.0
// What the live page shows, made from one reading of the cluster after the other: the state now,
// rates, the heat of experts, and a log of what has changed. Pure; bounded.
#pragma once

#include "launch/serve/cluster_reader.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace di::serve {

/// One line of the event log.
struct live_event {
  std::uint64_t number = 0; ///< from 1, rises by one
  std::int64_t wall_ms = 0; ///< [ms] since 1970, when it was seen
  std::string kind;         ///< death, state, view, moves, placement, control, order, journal
  std::string text;         ///< a sentence
};

/// Compares readings: an event is what differs from the last one. What happens and is undone
/// between two readings is seen only where it is counted (deaths, starts, views, moves).
/// Used by one thread at a time.
class live_core {
public:
  static constexpr std::size_t events_max = 256;  ///< kept; older ones are dropped
  static constexpr std::size_t ranks_max = 1'024; ///< shown

  /// @param wall_ms  [ms] since 1970  @param steady_ms  [ms] of a clock that never jumps
  void update(const cluster_reading& now, std::int64_t wall_ms, std::int64_t steady_ms);

  /// {"time", "control", "view", "wanted", "order", "ranks": [...], "requests", "rates", "totals"}
  std::string state_json() const;
  /// {"placement", "counted", "ranks": [[rank, rows]...], "groups": [{"first_layer", "layers",
  /// "experts", "rows_max", "cells"}]}. cells: [layers, experts], one character each, '0' cold to
  /// '0' + 63 as hot as rows_max. Empty if there was no heat yet.
  std::string heat_json() const;
  /// Events behind a number, oldest first, at most `most` of them.
  /// [{"n", "time", "kind", "text"}...]; "[]" if there are none. @return and the last one's number
  std::pair<std::string, std::uint64_t> events_json(std::uint64_t after, std::size_t most) const;
  std::uint64_t last_event() const noexcept { return last_; }
  const std::deque<live_event>& events() const noexcept { return events_; }

private:
  struct rate { ///< of a total, over about a second
    double total = 0, per_s = 0;
    std::int64_t at_ms = 0;
    bool known = false;
    void take(double now, std::int64_t now_ms);
  };

  void log(std::string kind, std::string text);
  void compare_keeper(const proto::keeper_state& before, const proto::keeper_state& now);
  void compare_counters(const proto::snapshot& before, const proto::snapshot& now);

  cluster_reading seen_; ///< newest answers of each kind
  bool control_ = true, any_ = false;
  std::string why_missing_;
  std::int64_t wall_ms_ = 0, down_since_ms_ = 0;
  rate tokens_, drafted_, accepted_, steps_;
  std::deque<live_event> events_;
  std::uint64_t last_ = 0;
};

} // namespace di::serve
