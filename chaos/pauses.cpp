// SPDX-License-Identifier: Apache-2.0
#include "chaos/pauses.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace di::chaos {
namespace {

double part_of(std::vector<double>& values, double part) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

constexpr std::int64_t about_same_us = 1'000'000;

bool hits(const injected& fault, std::uint32_t rank) {
  return std::find(fault.ranks.begin(), fault.ranks.end(), rank) != fault.ranks.end();
}

double ms_between(std::int64_t from_us, std::int64_t to_us) {
  return static_cast<double>(to_us - from_us) / 1000.0;
}

} // namespace

quantiles quantiles_of(std::vector<double> values) {
  quantiles q;
  q.count = values.size();
  if (values.empty())
    return q;
  q.p50 = part_of(values, 0.5);
  q.p99 = part_of(values, 0.99);
  q.max = values.back();
  return q;
}

std::uint32_t token_times::timed_stream::rank_of(std::size_t token) const {
  std::uint32_t rank = 0;
  for (const auto& [first, who] : served_by)
    if (first <= token)
      rank = who;
  return rank;
}

token_times::token_times(const std::vector<answer>& answers, const std::vector<log_event>& events) {
  // A control process that came back writes times of its own batch_began. Which life wrote an
  // answer shows in its last token: it cannot lie behind the next life's beginning.
  std::vector<std::int64_t> begins;
  for (const log_event& e : events)
    if (e.name == "batch_began" && e.mono_us > 0)
      begins.push_back(e.mono_us);
  if (begins.empty())
    return;
  for (const answer& a : answers)
    for (const stream& s : a.streams) {
      if (s.token_ms.empty())
        continue;
      const auto us = [](double ms) { return static_cast<std::int64_t>(ms * 1000.0); };
      std::size_t life = 0;
      while (life + 1 < begins.size() && begins[life] + us(s.token_ms.back()) > begins[life + 1])
        ++life;
      timed_stream t;
      t.submitted_us = begins[life] + us(s.submitted_ms);
      for (const double ms : s.token_ms)
        t.token_us.push_back(begins[life] + us(ms));
      t.served_by = s.served_by;
      streams_.push_back(std::move(t));
    }
}

double token_times::median_gap_ms(std::int64_t before_us) const {
  std::vector<double> gaps;
  for (const timed_stream& s : streams_)
    for (std::size_t i = 1; i < s.token_us.size() && s.token_us[i] < before_us; ++i)
      gaps.push_back(ms_between(s.token_us[i - 1], s.token_us[i]));
  return gaps.empty() ? 0 : part_of(gaps, 0.5);
}

double token_times::tokens_per_s() const {
  std::int64_t first = INT64_MAX, last = 0;
  std::size_t tokens = 0;
  for (const timed_stream& s : streams_) {
    first = std::min(first, s.token_us.front());
    last = std::max(last, s.token_us.back());
    tokens += s.token_us.size();
  }
  return last > first ? static_cast<double>(tokens) * 1e6 / static_cast<double>(last - first) : 0;
}

pauses token_times::pauses_of(const injected& fault, std::int64_t until_us,
                              const std::vector<injected>& all) const {
  std::vector<double> survivor, victim, fresh;
  const double usual = median_gap_ms(fault.begin_us);
  for (const timed_stream& s : streams_) {
    if (s.token_us.back() < fault.begin_us || s.submitted_us > until_us)
      continue;
    const auto next = std::upper_bound(s.token_us.begin(), s.token_us.end(), fault.begin_us);
    const auto had = static_cast<std::size_t>(next - s.token_us.begin());
    if (had == 0) {
      if (s.token_us.front() < until_us)
        fresh.push_back(ms_between(std::max(s.submitted_us, fault.begin_us), s.token_us.front()));
      continue;
    }
    std::vector<double> before;
    for (std::size_t i = 1; i < had; ++i)
      before.push_back(ms_between(s.token_us[i - 1], s.token_us[i]));
    const double median = before.size() < 4 ? usual : part_of(before, 0.5);
    double longest = 0;
    for (std::size_t i = had; i < s.token_us.size() && s.token_us[i - 1] < until_us; ++i)
      longest = std::max(longest, ms_between(s.token_us[i - 1], s.token_us[i]));
    const std::uint32_t rank = s.rank_of(had - 1);
    const bool hit = hits(fault, rank);
    if (!hit && std::any_of(all.begin(), all.end(), [&](const injected& f) {
          return std::abs(f.begin_us - fault.begin_us) < about_same_us && hits(f, rank);
        }))
      continue;
    (hit ? victim : survivor).push_back(std::max(longest - median, 0.0));
  }
  return {quantiles_of(survivor), quantiles_of(victim), quantiles_of(fresh),
          std::move(survivor),    std::move(victim),    std::move(fresh)};
}

std::vector<double> token_times::pauses_around(std::int64_t at_us, std::int64_t from_us,
                                               std::int64_t until_us) const {
  std::vector<double> out;
  const double usual = median_gap_ms(at_us);
  for (const timed_stream& s : streams_) {
    std::vector<double> before;
    std::optional<double> longest;
    for (std::size_t i = 1; i < s.token_us.size(); ++i) {
      const double gap = ms_between(s.token_us[i - 1], s.token_us[i]);
      if (s.token_us[i] <= at_us)
        before.push_back(gap);
      else if (s.token_us[i - 1] >= from_us && s.token_us[i - 1] < until_us)
        longest = std::max(longest.value_or(0), gap);
    }
    if (longest)
      out.push_back(std::max(*longest - (before.size() < 4 ? usual : part_of(before, 0.5)), 0.0));
  }
  return out;
}

} // namespace di::chaos
