// SPDX-License-Identifier: Apache-2.0
// Every filter keeps a prefix of the order (scaled logit descending, id ascending); so each one
// only moves the cut.
#include "engine/sampling/row_filter.hpp"

#include "engine/sampling/det_math.hpp"
#include "engine/sampling/exact_mass.hpp"
#include "engine/sampling/row_scan.hpp"

#include <algorithm>
#include <cmath>

namespace di::engine {
namespace {

constexpr double off = -std::numeric_limits<double>::infinity();

bool comes_first(const sample_scratch::candidate& a, const sample_scratch::candidate& b) {
  return a.scaled > b.scaled || (a.scaled == b.scaled && a.id < b.id);
}

class row_filter {
public:
  row_filter(const sampling_params& params, const prepared_row& row, sample_scratch& scratch)
      : params_{params}, row_{row}, scratch_{scratch} {}

  filter_cut run() {
    if (params_.min_p > 0)
      cut_.scaled =
          row_.highest + det_log(std::max(params_.min_p, std::numeric_limits<double>::min()));
    const bool top_k =
        params_.top_k > 0 && static_cast<std::size_t>(params_.top_k) < row_.base.size();
    if (top_k)
      cut_top_k(static_cast<std::size_t>(params_.top_k));
    if (params_.top_p < 1.0)
      cut_top_p(top_k);
    return cut_;
  }

private:
  // Collects kept tokens from the top down, in widening steps, until `enough()` or nothing is
  // left out.
  template <class Enough>
  void gather(Enough enough) {
    for (double step = 2.0;; step *= 2.0) {
      const bool all = step > 64.0;
      const double from = all ? cut_.scaled : std::max(cut_.scaled, row_.highest - step);
      scratch_.candidates.clear();
      for (std::size_t b = 0; b < row_.maxima.size(); ++b) {
        if (static_cast<double>(row_.maxima[b]) == off
            || row_.scaled(static_cast<double>(row_.maxima[b])) < from)
          continue;
        const std::size_t end = std::min((b + 1) * row_block, row_.base.size());
        for (std::size_t i = b * row_block; i < end; ++i)
          take(row_.at(i), static_cast<token_id>(i), from);
      }
      for (const auto& p : row_.patches)
        take(row_.scaled(p.logit), p.id, from);
      if (all || from <= cut_.scaled || enough())
        return;
    }
  }

  void take(double value, token_id id, double from) {
    if (value >= from && value != off && cut_.keeps(value, id))
      scratch_.candidates.push_back({value, id});
  }

  void cut_top_k(std::size_t k) {
    gather([&] { return scratch_.candidates.size() >= k; });
    auto& all = scratch_.candidates;
    if (all.size() < k) // then nothing was left out
      return;
    const auto last = all.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(all.begin(), last, all.end(), comes_first);
    cut_ = {last->scaled, last->id};
    all.resize(k);
  }

  void cut_top_p(bool after_top_k) {
    if (after_top_k) { // the candidates are exactly what top_k left
      std::uint64_t total = 0;
      for (const auto& c : scratch_.candidates)
        total += token_mass(c.scaled, row_.highest);
      cut_to_mass(mass_target(params_.top_p, total));
      return;
    }
    scratch_.masses.assign(mass_buckets, 0);
    add_masses(row_.base, row_.divisor, row_.highest, cut_.scaled, scratch_.masses);
    for (const auto& p : row_.patches)
      if (const double value = row_.scaled(p.logit); value >= cut_.scaled)
        scratch_.masses[mass_bucket(value, row_.highest)] += token_mass(value, row_.highest);
    std::uint64_t total = 0;
    for (const std::uint64_t m : scratch_.masses)
      total += m;
    std::uint64_t target = mass_target(params_.top_p, total);
    std::size_t bucket = 0; // the one in which the target is reached
    for (; scratch_.masses[bucket] < target; ++bucket)
      target -= scratch_.masses[bucket];
    gather_bucket(bucket);
    cut_to_mass(target);
  }

  void gather_bucket(std::size_t bucket) {
    scratch_.candidates.clear();
    const auto take_here = [&](double value, token_id id) {
      if (mass_bucket(value, row_.highest) == bucket && value != off && cut_.keeps(value, id))
        scratch_.candidates.push_back({value, id});
    };
    // A wider range of logits first, so that few tokens need the exact look.
    const double slack = 1e-9 * (std::fabs(row_.highest) + 1.0),
                 high = row_.highest - static_cast<double>(bucket) / 32.0;
    const double from = (high - 1.0 / 32.0 - slack) * row_.divisor,
                 to = (high + slack) * row_.divisor;
    for (std::size_t b = 0; b < row_.maxima.size(); ++b) {
      if (static_cast<double>(row_.maxima[b]) < from)
        continue;
      for (std::size_t i = b * row_block; i < std::min((b + 1) * row_block, row_.base.size()); ++i)
        if (const auto logit = static_cast<double>(row_.base[i]); logit >= from && logit <= to)
          take_here(row_.scaled(logit), static_cast<token_id>(i));
    }
    for (const auto& p : row_.patches)
      take_here(row_.scaled(p.logit), p.id);
  }

  // The shortest prefix of the order whose mass reaches the target: halves the window that holds
  // its end.
  void cut_to_mass(std::uint64_t target) {
    auto begin = scratch_.candidates.begin();
    auto end = scratch_.candidates.end();
    while (end - begin > 32) {
      const auto middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, comes_first);
      std::uint64_t first_half = 0;
      for (auto it = begin; it != middle; ++it)
        first_half += token_mass(it->scaled, row_.highest);
      if (first_half >= target) {
        end = middle;
      } else {
        target -= first_half;
        begin = middle;
      }
    }
    std::sort(begin, end, comes_first);
    for (auto it = begin; it != end; ++it) {
      const std::uint64_t mass = token_mass(it->scaled, row_.highest);
      if (mass >= target) {
        cut_ = {it->scaled, it->id};
        return;
      }
      target -= mass;
    }
  }

  const sampling_params& params_;
  const prepared_row& row_;
  sample_scratch& scratch_;
  filter_cut cut_;
};

} // namespace

filter_cut find_cut(const sampling_params& params, const prepared_row& row,
                    sample_scratch& scratch) {
  return row_filter{params, row, scratch}.run();
}

} // namespace di::engine
