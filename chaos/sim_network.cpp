// SPDX-License-Identifier: Apache-2.0
// Delay, loss, repetition and order of frames.
#include "chaos/sim_network.hpp"

#include <algorithm>

namespace di::sim {

namespace {

bool is_in(const std::vector<address>& group, const address& who) {
  return group.empty() || std::find(group.begin(), group.end(), who) != group.end();
}

} // namespace

bool link_range::has(const address& sender, const address& receiver) const {
  return (is_in(from, sender) && is_in(to, receiver))
         || (both_ways && is_in(from, receiver) && is_in(to, sender));
}

std::uint64_t sim_network::begin(link_range where, link_habits how, instant until) {
  bent_.emplace(next_, bend{std::move(where), how, until});
  return next_++;
}

std::vector<instant> sim_network::arrivals(const address& from, const address& to, bool bulk,
                                           instant now) {
  ++counts_.frames;
  duration delay = random_.span(delay_min_, delay_max_);
  instant earliest = now;
  bool reorder = false;
  int copies = 1;
  for (const auto& [number, b] : bent_) {
    if (!b.where.has(from, to))
      continue;
    if (b.how.cut || random_.chance(b.how.loss)) {
      ++counts_.lost;
      return {};
    }
    if (random_.chance(b.how.corrupt)) {
      ++counts_.corrupt; // its checksum is wrong: the receiver drops it
      return {};
    }
    if (b.how.hold) {
      ++counts_.held;
      earliest = std::max(earliest, b.until);
    }
    if (random_.chance(b.how.repeat)) {
      ++counts_.repeated;
      copies = 2;
    }
    delay += random_.span(duration{0}, b.how.delay_max);
    reorder = reorder || b.how.reorder;
  }
  std::vector<instant> all;
  for (int i = 0; i < copies; ++i) {
    instant at = earliest + delay + i * random_.span(duration{0}, 2 * delay_max_);
    if (!reorder) {
      instant& last = last_[{from, to, bulk}];
      at = last = std::max(at, last);
    }
    all.push_back(at);
  }
  return all;
}

} // namespace di::sim
