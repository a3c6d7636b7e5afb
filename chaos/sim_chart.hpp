// SPDX-License-Identifier: Apache-2.0
// The last messages of a run as a chart with one column per process.
#pragma once

#include "chaos/sim_world.hpp"

#include <deque>
#include <set>
#include <string>

namespace di::sim {

/// Keeps the last messages that were handled or lost, and what happened to processes.
class sim_chart final : public sim_observer {
public:
  /// @param lines_max  kept
  /// @param everything  expert calls, loads and turns of devices too
  sim_chart(const sim_world& world, std::size_t lines_max, bool everything)
      : world_{world}, lines_max_{lines_max}, everything_{everything} {}

  void on_mail(mail_event what, const sim_process& process, const address& self,
               const envelope& mail) override;
  void on_note(const sim_process& process, const std::string& words) override;
  /// The chart, and a line on what stands in it.
  std::string render() const;

private:
  struct line {
    instant at;
    address from, to; ///< processes; from empty: a note on `to`
    bool lost = false;
    std::string actor, note; ///< actor: path below the process
    parcel body;
  };
  void keep(line l);

  const sim_world& world_;
  std::size_t lines_max_;
  bool everything_;
  std::deque<line> lines_;
};

} // namespace di::sim
