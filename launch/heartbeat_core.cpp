// SPDX-License-Identifier: Apache-2.0
// Silence of nodes.
#include "launch/heartbeat_core.hpp"

#include <algorithm>

namespace di::launch {

using std::chrono::nanoseconds;

void heartbeat_core::heard(std::uint32_t node, nanoseconds now) {
  if (const auto at = nodes_.find(node); at != nodes_.end())
    at->second.heard_at = now;
}

heartbeat_core::findings heartbeat_core::round(nanoseconds now) {
  findings out;
  const auto late = started_ ? now - last_round_ - options_.every : nanoseconds{};
  started_ = true;
  last_round_ = now;
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    auto& [node, s] = *it;
    if (late > options_.every)
      s.heard_at = std::min(now, s.heard_at + late);
    const auto silent = now - s.heard_at;
    if (silent < options_.suspect && s.suspected) {
      s.suspected = false;
      out.answered.push_back(node);
    } else if (silent >= options_.suspect && !s.suspected) {
      s.suspected = true;
      out.silent.push_back(node);
    }
    if (silent >= std::max(options_.lease, options_.suspect)) {
      out.lost.push_back(node);
      it = nodes_.erase(it);
    } else {
      ++it;
    }
  }
  return out;
}

std::vector<std::uint32_t> heartbeat_core::nodes() const {
  std::vector<std::uint32_t> out;
  for (const auto& [node, s] : nodes_)
    out.push_back(node);
  return out;
}

nanoseconds heartbeat_core::silence(std::uint32_t node, nanoseconds now) const {
  const auto at = nodes_.find(node);
  return at == nodes_.end() ? nanoseconds{} : now - at->second.heard_at;
}

} // namespace di::launch
