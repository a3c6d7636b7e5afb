// SPDX-License-Identifier: Apache-2.0
// What becomes of a frame between two simulated processes: when it arrives, how often, or never.
// Per directed link; frames of one link stay in order unless a fault reorders them.
#pragma once

#include "chaos/sim_random.hpp"
#include "messaging/base/ids.hpp"

#include <cstdint>
#include <map>
#include <vector>

namespace di::sim {

/// Habits of links while a fault lasts. Several that apply add up.
struct link_habits {
  double loss = 0, repeat = 0, corrupt = 0; ///< probabilities; a corrupt frame fails its checksum
  duration delay_max{};                     ///< added, uniform from 0
  bool reorder = false;                     ///< frames may overtake each other
  bool cut = false;                         ///< nothing arrives
  bool hold = false;                        ///< nothing arrives while it lasts, then all of it
};

/// Which directed links a fault bends. Groups are named by the numbers of their processes.
struct link_range {
  std::vector<address> from, to; ///< prefixes; empty: every process
  bool both_ways = true;
  bool has(const address& sender, const address& receiver) const;
};

struct network_counts {
  std::uint64_t frames = 0, lost = 0, repeated = 0, corrupt = 0, held = 0;
};

class sim_network {
public:
  sim_network(sim_random random, duration delay_min, duration delay_max)
      : random_{random}, delay_min_{delay_min}, delay_max_{delay_max} {}

  /// @return its number, for end()
  std::uint64_t begin(link_range where, link_habits how, instant until);
  void end(std::uint64_t fault) { bent_.erase(fault); }
  void end_all() { bent_.clear(); }

  /// When the copies of a frame arrive; none if it is lost. @param bulk  the socket of large rows
  std::vector<instant> arrivals(const address& from, const address& to, bool bulk, instant now);
  const network_counts& counts() const noexcept { return counts_; }
  sim_random& random() noexcept { return random_; }

private:
  struct bend {
    link_range where;
    link_habits how;
    instant until;
  };
  struct lane {
    address from, to;
    bool bulk = false;
    friend auto operator<=>(const lane&, const lane&) = default;
  };

  sim_random random_;
  duration delay_min_, delay_max_;
  std::map<std::uint64_t, bend> bent_;
  std::uint64_t next_ = 1;
  std::map<lane, instant> last_; ///< arrival of the newest frame
  network_counts counts_;
};

} // namespace di::sim
