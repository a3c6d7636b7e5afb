// SPDX-License-Identifier: Apache-2.0
// How long expert calls to each rank take, and who is slow among them. Slow is not dead: such a
// rank is reported and gets less to do.
#pragma once

#include "engine/moe/placement.hpp" // placed_rank
#include "messaging/base/env.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace di::engine {

struct slow_holder {
  placed_rank who;
  double factor = 1; ///< its calls take so many times as long as the median holder's
  friend bool operator==(const slow_holder&, const slow_holder&) = default;
};

struct speed_rules {
  double slow_above = 2.5;         ///< [times the median] a rank is slow above this ...
  double slow_below = 1.5;         ///< ... until it is below that
  std::uint32_t calls_min = 128;   ///< answers of a holder before it is judged
  std::uint32_t holders_min = 3;   ///< among fewer nobody is judged
  double smoothing = 1.0 / 64;     ///< weight of one call in the mean
  std::uint32_t judged_every = 64; ///< answers between two judgements
};

/// Means of other ranks' answers over the last calls. Owned by one RANK, used on its thread only.
///
/// Everybody who calls a slow rank sees the same, so their majority is right even if one of them is
/// slow itself: then all others look alike to it.
class holder_speeds {
public:
  explicit holder_speeds(speed_rules rules = {}) : rules_{rules} {}

  /// An answer came. @return whether slow() is another list than before
  bool observe(const placed_rank& who, duration took);
  /// Others are forgotten. @return as above
  bool keep_only(std::span<const placed_rank> alive);
  /// In order of rank.
  const std::vector<slow_holder>& slow() const noexcept { return slow_; }

private:
  struct holder {
    incarnation life{};
    double mean_ns = 0;
    std::uint32_t calls = 0;
    bool slow = false;
  };
  bool judge();

  speed_rules rules_;
  std::map<rank_id, holder> holders_;
  std::vector<slow_holder> slow_;
  std::vector<double> means_; ///< scratch
  std::uint32_t unjudged_ = 0;
};

} // namespace di::engine
