// SPDX-License-Identifier: Apache-2.0
// Which node processes have fallen silent. One host asks each other host; hosts that share ranks
// with nobody else need no more. Pure: time comes in.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

namespace di::launch {

struct heartbeat_options {
  using time = std::chrono::nanoseconds;
  time every = std::chrono::milliseconds{100};   ///< a beat is sent so often
  time suspect = std::chrono::milliseconds{500}; ///< silence after which a node is suspected
  time lease = std::chrono::seconds{1};          ///< and after which it counts as lost; more
};

/// Anything that a node says counts as an answer. A round that comes late, because this process was
/// not run, is excused: nodes get the time back.
class heartbeat_core {
public:
  explicit heartbeat_core(heartbeat_options options) : options_{options} {}

  /// A node is there (again).
  void add(std::uint32_t node, std::chrono::nanoseconds now) { nodes_[node] = {now, false}; }
  void remove(std::uint32_t node) { nodes_.erase(node); }
  void heard(std::uint32_t node, std::chrono::nanoseconds now);

  /// What a round finds. Each is told once per silence.
  struct findings {
    std::vector<std::uint32_t> silent;   ///< suspected from now on
    std::vector<std::uint32_t> answered; ///< suspected no more
    std::vector<std::uint32_t> lost;     ///< not asked any more until added again
  };
  /// To be called each options.every; a beat goes to all nodes() afterwards.
  findings round(std::chrono::nanoseconds now);
  std::vector<std::uint32_t> nodes() const;
  /// [ns] since it was heard last
  std::chrono::nanoseconds silence(std::uint32_t node, std::chrono::nanoseconds now) const;

private:
  struct state {
    std::chrono::nanoseconds heard_at{};
    bool suspected = false;
  };
  heartbeat_options options_;
  std::chrono::nanoseconds last_round_{};
  bool started_ = false;
  std::map<std::uint32_t, state> nodes_;
};

} // namespace di::launch
