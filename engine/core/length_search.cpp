// SPDX-License-Identifier: Apache-2.0
// The search over numbers of drafts.
#include "engine/core/length_search.hpp"

#include <algorithm>
#include <bit>

namespace di::engine {

std::string_view to_string(verify_plan::kind how) noexcept {
  switch (how) {
  case verify_plan::kind::none:
    return "none";
  case verify_plan::kind::all:
    return "all";
  case verify_plan::kind::uniform:
    return "uniform";
  case verify_plan::kind::trimmed:
    return "trimmed";
  }
  return "?";
}

/// Usable survivals, made monotone, position by position and offer by offer: the order of ties.
void length_search::flatten(std::span<const std::span<const float>> survivals,
                            std::span<const std::uint32_t> counts, double survival_min) {
  const std::size_t n = counts.size();
  usable_.assign(n, 0);
  last_.assign(n, 1.0F);
  level_.assign(1, {0, 0.0});
  slots_.clear();
  std::uint32_t longest = 0;
  for (const std::uint32_t count : counts)
    longest = std::max(longest, count);
  double sum = 0;
  for (std::uint32_t j = 0; j < longest; ++j) {
    const std::size_t before = slots_.size();
    for (std::size_t i = 0; i < n; ++i) {
      if (usable_[i] != j || j >= counts[i])
        continue;
      const float a = std::min(survivals[i][j], last_[i]); // NaN fails the next line
      if (!(static_cast<double>(survivals[i][j]) >= survival_min))
        continue;
      last_[i] = a;
      usable_[i] = j + 1;
      sum += static_cast<double>(a);
      slots_.push_back({a, static_cast<std::uint32_t>(i)});
    }
    if (slots_.size() == before)
      break;
    level_.push_back({static_cast<std::uint32_t>(slots_.size()), sum});
  }
}

/// Whether some number of drafts could beat `rate` if each of them were accepted until there are as
/// many tokens as all drafts together yield.
bool length_search::could_beat(double rate, std::span<const double> step_ms, double tokens,
                               double trim_ms) const {
  const double most = tokens + level_.back().survivals;
  const std::size_t cap = std::min(slots_.size(), step_ms.size() - 1);
  for (std::size_t k = 1; k <= cap; ++k)
    if (std::min(most, tokens + static_cast<double>(k)) > rate * (step_ms[k] + trim_ms))
      return true;
  return false;
}

/// Stable, descending: the order of ties is that of flatten().
void length_search::sort_slots() {
  constexpr unsigned digit = 10;
  constexpr std::uint32_t mask = (1U << digit) - 1;
  // Bits of floats in [0, 1] order like the floats and need 30 bits.
  if (slots_.size() < 64) {
    std::stable_sort(slots_.begin(), slots_.end(),
                     [](const slot& a, const slot& b) { return a.survival > b.survival; });
    return;
  }
  spare_.resize(slots_.size());
  for (unsigned shift = 0; shift < 30; shift += digit) {
    std::array<std::uint32_t, mask + 2> start{};
    const auto key = [shift](const slot& s) {
      return mask - ((std::bit_cast<std::uint32_t>(s.survival) >> shift) & mask);
    };
    for (const slot& s : slots_)
      ++start[key(s) + 1];
    for (std::size_t i = 1; i < start.size(); ++i)
      start[i] += start[i - 1];
    for (const slot& s : slots_)
      spare_[start[key(s)]++] = s;
    slots_.swap(spare_);
  }
}

void length_search::run(std::span<const std::span<const float>> survivals,
                        std::span<const std::uint32_t> counts, std::span<const double> step_ms,
                        double tokens, const length_rules& rules, verify_plan& plan) {
  flatten(survivals, counts, rules.survival_min);
  const std::size_t cap = std::min(slots_.size(), step_ms.size() - 1);
  std::size_t uniform = 0; // drafts per sequence
  double best = 0;
  for (std::size_t j = 0; j < level_.size() && level_[j].drafts <= cap; ++j) {
    const double rate = (tokens + level_[j].survivals) / step_ms[level_[j].drafts];
    if (rate > best || j == 0) {
      best = rate;
      uniform = j;
    }
  }
  plan.how = uniform == 0                   ? verify_plan::kind::none
             : uniform + 1 == level_.size() ? verify_plan::kind::all
                                            : verify_plan::kind::uniform;
  plan.drafts = level_[uniform].drafts;
  plan.tokens = tokens + level_[uniform].survivals;
  plan.step_ms = step_ms[plan.drafts];
  plan.lengths.resize(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i)
    plan.lengths[i] = std::min(usable_[i], static_cast<std::uint32_t>(uniform));
  const double to_beat = best * (1 + rules.gain_min);
  if (could_beat(to_beat, step_ms, tokens, rules.trim_ms))
    trim(cap, step_ms, tokens, to_beat, rules.trim_ms, plan);
}

/// Looks at every number of drafts; keeps the plan if none beats `rate`.
void length_search::trim(std::size_t cap, std::span<const double> step_ms, double tokens,
                         double rate, double trim_ms, verify_plan& plan) {
  sort_slots();
  std::size_t best = 0;
  double sum = tokens, yields = 0;
  for (std::size_t k = 1; k <= cap; ++k) {
    sum += static_cast<double>(slots_[k - 1].survival);
    const double reached = sum / (step_ms[k] + trim_ms);
    if (reached > rate) {
      rate = reached;
      best = k;
      yields = sum;
    }
  }
  if (best == 0)
    return;
  std::fill(plan.lengths.begin(), plan.lengths.end(), 0);
  for (std::size_t k = 0; k < best; ++k)
    ++plan.lengths[slots_[k].offer];
  plan.how = verify_plan::kind::trimmed;
  plan.drafts = static_cast<std::uint32_t>(best);
  plan.tokens = yields;
  plan.step_ms = step_ms[best] + trim_ms;
}

} // namespace di::engine
