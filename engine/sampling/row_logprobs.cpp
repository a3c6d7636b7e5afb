// SPDX-License-Identifier: Apache-2.0
// Values are compared after the normaliser was subtracted: that rounding can make two logits equal,
// and then ids decide.
#include "engine/sampling/row_logprobs.hpp"

#include "engine/sampling/det_math.hpp"
#include "engine/sampling/row_scan.hpp"

#include <algorithm>
#include <array>
#include <functional>

namespace di::engine {
namespace {

bool comes_first(const token_logprob& a, const token_logprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
}

void keep_first(std::vector<token_logprob>& top, std::size_t count) {
  count = std::min(count, top.size());
  std::partial_sort(top.begin(), top.begin() + static_cast<std::ptrdiff_t>(count), top.end(),
                    comes_first);
  top.resize(count);
}

// A logit that at least `count` tokens reach: the count-th largest block maximum, as each block
// holds one such token.
float reached_by(std::span<const float> maxima, std::size_t count) {
  if (count > maxima.size())
    return -std::numeric_limits<float>::infinity();
  std::vector<float> sorted(maxima.begin(), maxima.end());
  const auto nth = sorted.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(sorted.begin(), nth, sorted.end(), std::greater<>{});
  return *nth;
}

} // namespace

void report_row(std::span<const float> row, std::span<const float> maxima, bool normalise,
                std::size_t count, token_choice& out) {
  const double norm =
      normalise ? log_sum_exp(row, *std::max_element(maxima.begin(), maxima.end())) : 0.0;
  const auto value = [&](float logit) { return static_cast<double>(logit) - norm; };
  out.logprob = value(row[static_cast<std::size_t>(out.id)]);
  if (count == 0)
    return;
  const double from = value(reached_by(maxima, count));
  for (std::size_t b = 0; b < maxima.size(); ++b) {
    if (value(maxima[b]) < from)
      continue;
    for (std::size_t i = b * row_block; i < std::min((b + 1) * row_block, row.size()); ++i)
      if (value(row[i]) >= from)
        out.top.push_back({static_cast<token_id>(i), value(row[i])});
  }
  keep_first(out.top, count);
}

void report_values(std::span<const double> values, bool normalise, std::size_t count,
                   token_choice& out) {
  double norm = 0.0;
  if (normalise) { // the order of sums of log_sum_exp
    const double highest = *std::max_element(values.begin(), values.end());
    std::array<double, row_block> lanes{};
    for (std::size_t i = 0; i < values.size(); ++i)
      lanes[i % row_block] += det_exp(values[i] - highest);
    for (std::size_t width = row_block / 2; width > 0; width /= 2)
      for (std::size_t l = 0; l < width; ++l)
        lanes[l] += lanes[l + width];
    norm = highest + det_log(lanes[0]);
  }
  out.logprob = values[static_cast<std::size_t>(out.id)] - norm;
  for (std::size_t i = 0; i < values.size(); ++i)
    out.top.push_back({static_cast<token_id>(i), values[i] - norm});
  keep_first(out.top, count);
}

} // namespace di::engine
