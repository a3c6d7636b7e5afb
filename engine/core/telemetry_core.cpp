// SPDX-License-Identifier: Apache-2.0
// Totals per life, folded into sums.
#include "engine/core/telemetry_core.hpp"

#include <algorithm>

namespace di::engine {
namespace {

constexpr std::size_t past_lives_max = 8;

} // namespace

void telemetry_core::on(const proto::sample& m, instant /*now*/, outbox& out) {
  const auto drop = [&] {
    ++dropped_;
    out.count("di_telemetry_samples_dropped_total");
  };
  auto found = sources_.find(m.source);
  if (m.counters.size() > counters_max
      || (found == sources_.end() && sources_.size() >= sources_max))
    return drop();
  if (found == sources_.end()) {
    source fresh;
    fresh.life = m.life;
    found = sources_.emplace(m.source, std::move(fresh)).first;
  }
  auto& s = found->second;
  if (s.life != m.life) {
    if (std::find(s.past.begin(), s.past.end(), m.life) != s.past.end())
      return drop();
    for (const auto& [name, total] : s.latest)
      s.base[name] += total;
    s.latest.clear();
    s.past.push_back(s.life);
    if (s.past.size() > past_lives_max)
      s.past.erase(s.past.begin());
    s.life = m.life;
    s.sequence = 0;
  }
  if (m.sequence <= s.sequence)
    return drop();
  s.sequence = m.sequence;
  s.latest = m.counters;
  ++samples_;
}

result<proto::snapshot> telemetry_core::on(const proto::get_snapshot& /*m*/) const {
  proto::snapshot sums;
  for (const auto& [path, s] : sources_) {
    sums.sources.push_back(path);
    for (const auto* part : {&s.base, &s.latest})
      for (const auto& [name, total] : *part)
        sums.counters[name] += total;
  }
  sums.samples = samples_;
  sums.dropped = dropped_;
  return sums;
}

void telemetry_core::check() const {
  DI_CHECK(sources_.size() <= sources_max);
  for (const auto& [path, s] : sources_) {
    DI_CHECK(s.past.size() <= past_lives_max);
    DI_CHECK(std::find(s.past.begin(), s.past.end(), s.life) == s.past.end());
  }
}

} // namespace di::engine
