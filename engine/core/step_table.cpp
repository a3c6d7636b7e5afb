// SPDX-License-Identifier: Apache-2.0
// Buckets of the step table, and the monotone curve through them.
#include "engine/core/step_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace di::engine {

step_table::step_table(step_table_options options) : options_{options} {
  nodes_.reserve(buckets);
}

std::size_t step_table::index(std::uint32_t rows) noexcept {
  if (rows <= 8)
    return rows - 1;
  const auto octave = static_cast<unsigned>(std::bit_width(rows)) - 1; // >= 3
  const std::size_t i = 8 + (octave - 3) * 4 + ((rows >> (octave - 2)) & 3U);
  return std::min(i, buckets - 1);
}

void step_table::profile(std::uint32_t rows, double ms) noexcept {
  if (rows == 0 || !(ms > 0) || !std::isfinite(ms))
    return;
  bucket& b = buckets_[index(rows)];
  known_ += b.known ? 0 : 1;
  b = {static_cast<double>(rows), ms / speed_, true};
  rebuild();
}

void step_table::observe(std::uint32_t rows, double ms_) noexcept {
  if (rows == 0 || !(ms_ > 0) || !std::isfinite(ms_))
    return;
  bucket& b = buckets_[index(rows)];
  if (known_ < 2 && !b.known)
    return profile(rows, ms_);
  // Within a bucket a larger step is slower: compare with the curve, not with the mean.
  const double expected = std::max(ms(rows), 1e-9);
  const double off = std::log(ms_ / expected), limit = options_.clip_spreads * spread_;
  const double clipped = std::clamp(off, -limit, limit);
  if (b.known) {
    b.rows += options_.learn * (static_cast<double>(rows) - b.rows);
    b.level *= std::exp(options_.learn * clipped);
  } else { // between what its neighbours say and what was seen, should that be a wild one
    b = {static_cast<double>(rows), expected / speed_ * std::exp(std::clamp(off, -0.3, 0.3)), true};
    ++known_;
  }
  speed_ *= std::exp(options_.learn_speed * clipped);
  // A lasting change looks wild at first; the spread grows until it counts.
  spread_ = std::max(0.01, spread_ + 0.05 * (std::min(std::abs(off), limit) - spread_));
  rebuild();
}

void step_table::rebuild() noexcept {
  nodes_.clear();
  double highest = 0;
  for (const bucket& b : buckets_) {
    if (!b.known)
      continue;
    highest = std::max(highest, b.level * speed_);
    nodes_.push_back({b.rows, highest, true});
  }
  slope_ = stair_end_ = 0;
  if (options_.padded_to > 0)
    for (auto node = nodes_.begin(); node != nodes_.end(); ++node) {
      stair_end_ = node->level;
      if (node->rows >= options_.padded_to)
        break;
    }
  if (nodes_.size() >= 2) {
    const bucket& low = nodes_[(nodes_.size() - 1) / 2];
    slope_ = (nodes_.back().level - low.level) / (nodes_.back().rows - low.rows);
  }
}

double step_table::ms(std::uint32_t rows) const noexcept {
  double out = 0;
  fill(rows, {&out, 1});
  return out;
}

void step_table::fill(std::uint32_t first, std::span<double> out) const noexcept {
  std::size_t next = 0; // the first node at or above the size
  const auto below = [](const bucket& b, double rows) { return b.rows < rows; };
  if (!out.empty())
    next = static_cast<std::size_t>(std::lower_bound(nodes_.begin(), nodes_.end(), first, below)
                                    - nodes_.begin());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double rows = static_cast<double>(first) + static_cast<double>(i);
    while (next < nodes_.size() && nodes_[next].rows < rows)
      ++next;
    if (nodes_.empty() || rows == 0) {
      out[i] = 0;
    } else if (next == nodes_.size()) {
      out[i] = nodes_.back().level + slope_ * (rows - nodes_.back().rows);
    } else if (rows <= options_.padded_to || nodes_.size() == 1) {
      out[i] = nodes_[next].level;
    } else {
      // Below the first node its slope to the second goes on, down to half of it.
      const bucket& a = nodes_[next == 0 ? 0 : next - 1];
      const bucket& b = nodes_[next == 0 ? 1 : next];
      const double at = a.level + (b.level - a.level) * (rows - a.rows) / (b.rows - a.rows);
      out[i] = std::max(
          {std::min(at, nodes_[next].level), next == 0 ? a.level / 2 : a.level, stair_end_});
    }
  }
}

std::string step_table::to_string() const {
  std::string text;
  for (const bucket& b : nodes_)
    text += fmt::format("{}{:.0f}: {:.3g} ms", text.empty() ? "" : ", ", b.rows, b.level);
  return text.empty() ? "nothing measured" : text;
}

} // namespace di::engine
