// SPDX-License-Identifier: Apache-2.0
// Means and their median.
#include "engine/core/holder_speeds.hpp"

#include <algorithm>

namespace di::engine {

bool holder_speeds::observe(const placed_rank& who, duration took) {
  holder& h = holders_[who.rank];
  if (h.life != who.life)
    h = {who.life, 0, 0, false};
  const auto ns = static_cast<double>(took.count());
  // The first calls count alike, later ones less and less.
  const double weight = std::max(rules_.smoothing, 1.0 / (1.0 + h.calls));
  h.mean_ns += weight * (ns - h.mean_ns);
  h.calls += h.calls < rules_.calls_min;
  if (++unjudged_ < rules_.judged_every)
    return false;
  return judge();
}

bool holder_speeds::keep_only(std::span<const placed_rank> alive) {
  std::erase_if(holders_, [&](const auto& h) {
    return std::find(alive.begin(), alive.end(), placed_rank{h.first, h.second.life})
           == alive.end();
  });
  return judge();
}

bool holder_speeds::judge() {
  unjudged_ = 0;
  means_.clear();
  for (const auto& [rank, h] : holders_)
    if (h.calls >= rules_.calls_min)
      means_.push_back(h.mean_ns);
  std::vector<slow_holder> now;
  if (means_.size() >= rules_.holders_min) {
    const auto middle = means_.begin() + static_cast<std::ptrdiff_t>(means_.size() / 2);
    std::nth_element(means_.begin(), middle, means_.end());
    const double median = std::max(*middle, 1.0);
    for (auto& [rank, h] : holders_) {
      if (h.calls < rules_.calls_min)
        continue;
      const double factor = h.mean_ns / median;
      h.slow = factor > (h.slow ? rules_.slow_below : rules_.slow_above);
      if (h.slow)
        now.push_back({{rank, h.life}, factor});
    }
  }
  const auto same = [](const slow_holder& a, const slow_holder& b) {
    return a.who == b.who && a.factor < 2 * b.factor && b.factor < 2 * a.factor;
  };
  if (std::equal(now.begin(), now.end(), slow_.begin(), slow_.end(), same))
    return false;
  slow_ = std::move(now);
  return true;
}

} // namespace di::engine
