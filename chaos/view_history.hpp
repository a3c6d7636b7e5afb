// SPDX-License-Identifier: Apache-2.0
// The views of a run as its log tells them, and what followed each fault.
#pragma once

#include "chaos/verdict.hpp"

#include <cstdint>
#include <set>
#include <vector>

namespace di::chaos {

class view_history {
public:
  view_history(const std::vector<log_event>& events, std::uint32_t ranks);

  std::size_t committed_after_first() const noexcept {
    return views_.empty() ? 0 : views_.size() - 1;
  }
  std::size_t expelled() const noexcept { return expelled_; }
  std::size_t joined() const noexcept { return joined_; }
  /// Of the last view.
  std::size_t members() const noexcept { return members_; }
  /// Of the smallest view.
  std::size_t members_min() const noexcept { return members_min_; }
  /// Lives that left a view though no fault before had ended or stopped them, and KEEPER had not
  /// said since an operator's command that they are on their way out. A fault excuses one life of
  /// each of its ranks: the first that leaves after it.
  std::size_t expelled_without(const std::vector<injected>& faults,
                               const std::vector<log_event>& events) const;
  /// When an armed fault struck: a process that hangs says so itself before; of one that died, when
  /// a node process first spoke of it. The fault's begin if neither was seen.
  static std::int64_t struck_us(const injected& f, const std::vector<log_event>& events);
  /// Fills in the times after a fault; of armed ones the detection only if they
  /// told themselves when they struck.
  void follow(aftermath& a, std::int64_t until_us, const std::vector<log_event>& events) const;

private:
  struct step {
    std::int64_t mono_us = 0;
    std::int64_t view = 0;
    std::set<std::uint32_t> left, came;
  };
  /// The first view after this time that the rank is no longer in, of those that `taken` has not.
  std::size_t leaves_after(std::uint32_t rank, std::int64_t from_us,
                           const std::set<std::pair<std::size_t, std::uint32_t>>& taken) const;
  /// When the life came that leaves with this view.
  std::int64_t came_us(std::uint32_t rank, std::size_t leaves) const;

  std::vector<step> views_;
  std::size_t expelled_ = 0, joined_ = 0, members_ = 0, members_min_ = 0;
};

} // namespace di::chaos
