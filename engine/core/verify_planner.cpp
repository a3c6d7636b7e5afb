// SPDX-License-Identifier: Apache-2.0
// Choosing lengths with the tables, and whether to draft.
#include "engine/core/verify_planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace di::engine {

namespace {

constexpr std::uint64_t plain_period = 4; ///< one step of so many of the first ones has no drafts

} // namespace

verify_planner::verify_planner(verify_planner_options options)
    : options_{options},
      step_{options.step},
      draft_{options.draft},
      probe_after_{options.probe_first} {
}

void verify_planner::observe_step(std::uint32_t rows, double ms, double context_ms) noexcept {
  step_.observe(rows, std::max(ms - context_ms, ms / 8)); // a wrong model cannot make it free
}

void verify_planner::observe_draft(std::uint32_t sequences, double ms) noexcept {
  draft_.observe(sequences, ms);
}

/// Tokens per millisecond of the best plan with drafts, by what survivals looked like lately.
double verify_planner::drafting_rate(std::uint32_t sequences, std::uint32_t drafted_anyway,
                                     std::uint32_t other_rows) const {
  const double n = sequences;
  const std::uint32_t base = sequences + drafted_anyway + other_rows;
  const double draft_ms = draft_.ms(sequences + drafted_anyway);
  double tokens = n + drafted_anyway, drafts = 0, best = 0;
  for (std::size_t i = bins; i-- > 0;) {
    if (seen_[i] <= 0)
      continue;
    const double more = n * seen_[i] / seen_offers_;
    drafts += more;
    tokens += more * (static_cast<double>(i) + 0.5) / bins;
    const auto rows = base + static_cast<std::uint32_t>(std::llround(drafts));
    if (options_.rows_max > 0 && rows > options_.rows_max)
      break;
    best = std::max(best, tokens / (step_.ms(rows) + draft_ms));
  }
  return best;
}

bool verify_planner::wants_drafts(std::uint32_t sequences, std::uint32_t drafted_anyway,
                                  std::uint32_t other_rows) {
  if (sequences == 0)
    return false;
  // Steps without drafts must have been measured too.
  const std::uint64_t every = options_.explore_every, turn = turns_ % plain_period;
  ++turns_;
  if (blocks_ < options_.warmup_blocks)
    return turn != plain_period - 1;
  if (every > 0 && turns_ % every == every / 2)
    return false;
  if (seen_offers_ <= 0 || step_.known() < 2)
    return true;
  const double plain =
      (sequences + drafted_anyway)
      / (step_.ms(sequences + drafted_anyway + other_rows) + draft_.ms(drafted_anyway));
  const double with = drafting_rate(sequences, drafted_anyway, other_rows);
  if (with > plain * (drafting_ ? 1 : 1 + options_.gain_on)) {
    if (!drafting_)
      probe_after_ = options_.probe_first;
    drafting_ = true;
    probe_left_ = 0;
    return true;
  }
  if (drafting_) {
    drafting_ = false;
    since_draft_ = 0;
  }
  if (probe_left_ > 0)
    return true;
  if (++since_draft_ < probe_after_) {
    ++skipped_;
    return false;
  }
  since_draft_ = 0; // a try: fresh survivals, outcomes and times, in case they have changed
  probe_after_ = std::min(2 * probe_after_, options_.probe_max);
  probe_left_ = std::max(options_.probe_blocks, 1U);
  return true;
}

void verify_planner::remember() {
  for (double& bin : seen_)
    bin *= options_.forget;
  seen_offers_ *= options_.forget;
  for (std::size_t i = 0; i < survivals_.size(); ++i) {
    if (survivals_[i].empty())
      continue; // it had no drafts, or is not for this planner
    seen_offers_ += 1;
    float floor = 1;
    for (const float a : survivals_[i]) {
      if (!(a >= 0))
        break;
      floor = std::min(floor, a);
      const auto bin = static_cast<std::size_t>(static_cast<double>(floor) * bins);
      seen_[std::min(bin, bins - 1)] += 1;
    }
  }
}

/// What each offer may get, and what fixed ones get anyway. @return drafts of fixed offers
std::uint32_t verify_planner::sort_out(std::span<const verify_offer> offers, std::uint32_t room,
                                       double& tokens) {
  survivals_.assign(offers.size(), {});
  counts_.assign(offers.size(), 0);
  fixed_.assign(offers.size(), 0);
  std::uint32_t drafts = 0;
  tokens = static_cast<double>(offers.size());
  for (std::size_t i = 0; i < offers.size(); ++i) {
    const verify_offer& offer = offers[i];
    if (offer.wanted.mode == speculation_mode::varlen) {
      survivals_[i] = offer.survivals;
      counts_[i] =
          std::min({offer.limit, drafts_max, static_cast<std::uint32_t>(offer.survivals.size())});
    } else if (offer.wanted.mode == speculation_mode::fixed) {
      fixed_[i] = std::min({offer.limit, offer.wanted.drafts, room - drafts});
      drafts += fixed_[i];
      for (std::size_t j = 0; j < std::min<std::size_t>(fixed_[i], offer.survivals.size()); ++j)
        tokens += offer.survivals[j] >= 0 ? static_cast<double>(offer.survivals[j]) : 0;
    }
  }
  return drafts;
}

const verify_plan& verify_planner::choose(std::span<const verify_offer> offers,
                                          std::uint32_t other_rows, std::uint32_t drafted) {
  const auto plain = static_cast<std::uint32_t>(offers.size()) + other_rows;
  const std::uint32_t room = options_.rows_max == 0      ? ~0U
                             : options_.rows_max > plain ? options_.rows_max - plain
                                                         : 0;
  double tokens = 0;
  const std::uint32_t fixed = sort_out(offers, room, tokens);
  std::uint32_t varlen = 0;
  double context = 0;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    varlen += counts_[i];
    context += offers[i].context;
  }
  remember();
  if (probe_left_ > 0) { // a try needs no more than so many sequences
    std::uint32_t left = probe_left_;
    varlen = 0;
    for (std::uint32_t& count : counts_) {
      count = left > 0 ? count : 0;
      left -= count > 0 ? 1 : 0;
      varlen += count;
    }
  }

  ms_.resize(std::min(varlen, room - fixed) + 1);
  const bool modelled = step_.known() >= 2;
  const double draft_ms = draft_.ms(drafted);
  const double mean = offers.empty() ? 0 : context / static_cast<double>(offers.size());
  const double base = draft_ms + context_cost_ * (context + fixed * mean);
  step_.fill(plain + fixed, ms_);
  for (std::size_t k = 0; k < ms_.size(); ++k)
    ms_[k] += base + context_cost_ * mean * static_cast<double>(k);
  if (modelled && !explores()) {
    search_.run(survivals_, counts_, ms_, tokens, options_.lengths, plan_);
  } else { // verify all, and so learn what it costs and yields
    flat_.assign(ms_.size(), 1.0);
    search_.run(survivals_, counts_, flat_, tokens, {0, 0, options_.lengths.survival_min}, plan_);
    plan_.step_ms = modelled ? ms_[plan_.drafts] : 0;
  }
  note_blocks();
  plan_.drafts += fixed;
  for (std::size_t i = 0; i < offers.size(); ++i)
    plan_.lengths[i] += fixed_[i];
  ++plans_;
  ++by_kind_[static_cast<std::size_t>(plan_.how)];
  return plan_;
}

/// Whether this plan serves to learn.
bool verify_planner::explores() const noexcept {
  const std::uint32_t every = options_.explore_every;
  return blocks_ < options_.warmup_blocks || probe_left_ > 0
         || (every > 0 && plans_ % every == every - 1);
}

void verify_planner::note_blocks() noexcept {
  std::uint32_t blocks = 0;
  for (const std::uint32_t length : plan_.lengths)
    blocks += length > 0 ? 1 : 0;
  blocks_ += blocks;
  probe_left_ -= std::min(probe_left_, std::max(blocks, 1U)); // nobody was fed: it is over some day
}

std::string verify_planner::to_string() const {
  return fmt::format(
      "drafting {}; plans: {} none, {} all, {} uniform, {} trimmed; {} steps without "
      "drafts; steps: {}; drafts: {}",
      drafting_ ? "on" : "off", by_kind_[0], by_kind_[1], by_kind_[2], by_kind_[3], skipped_,
      step_.to_string(), draft_.to_string());
}

} // namespace di::engine
