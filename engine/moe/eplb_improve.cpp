// SPDX-License-Identifier: Apache-2.0
// Improving a layer's placement: swaps of two slots and copies given to other experts.
#include "engine/moe/eplb_layer.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace di::engine {

namespace {

constexpr std::uint32_t light_ranks_max = 16; // looked at as partners of a full one
constexpr double even_enough = 1.001;         // [peak over mean] of a large layer: no more rounds
constexpr std::size_t large_slots = 256;      // [slots] of a layer that is worth less effort
constexpr double gain_wanted = 1e-4;          // [share of the peak] good enough to stop looking
constexpr float too_small = 1e-6F;            // [share of the peak] not worth a change

/// Sums over bins after a swap: of the fullest rank, and of the fuller one of the two.
struct swapped {
  float peak = 0, pair = 0;
};

/// @tparam Bins  how many, if known when compiled; 0: `bins`
template <std::uint32_t Bins>
swapped swap_rows(const float* la, const float* lb, const float* sx, const float* sy,
                  const float* rest, std::uint32_t bins) {
  swapped sum;
  for (std::uint32_t t = 0; t < (Bins == 0 ? bins : Bins); ++t) {
    const float d = sx[t] - sy[t];
    const float a = la[t] - d, b = lb[t] + d;
    const float fuller = a > b ? a : b;
    sum.pair += fuller;
    sum.peak += rest[t] > fuller ? rest[t] : fuller;
  }
  return sum;
}

} // namespace

double layer_balancer::peak_sum() const {
  double sum = 0;
  for (std::uint32_t t = 0; t < bins_; ++t) {
    float most = 0;
    for (std::uint32_t r = 0; r < shape_.ranks; ++r)
      most = std::max(most, loads_[std::size_t{r} * bins_ + t]);
    sum += most;
  }
  return sum;
}

/// Fullest ranks of each bin. @return the sum of the peaks
double layer_balancer::find_tops() {
  double sum = 0;
  for (std::uint32_t t = 0; t < bins_; ++t) {
    top& best = tops_[t];
    best.rows.fill(-1);
    best.ranks.fill(none);
    for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
      const float load = loads_[std::size_t{r} * bins_ + t];
      if (load <= best.rows[tops_kept - 1])
        continue;
      std::size_t at = tops_kept - 1;
      for (; at > 0 && load > best.rows[at - 1]; --at) {
        best.rows[at] = best.rows[at - 1];
        best.ranks[at] = best.ranks[at - 1];
      }
      best.rows[at] = load;
      best.ranks[at] = r;
    }
    sum += best.rows[0];
  }
  return sum;
}

/// Swaps of a slot of rank a with one of a lighter rank.
void layer_balancer::try_swaps(std::uint32_t a, double peak, improvement& best, double& best_even) {
  const float* la = load_of(a);
  float* rest = trial_.data(); // fullest of the other ranks, per bin
  for (const std::uint32_t b : lightest_) {
    if (b == a || (!node_of_expert_.empty() && shape_.node_of_rank[a] != shape_.node_of_rank[b]))
      continue;
    const float* lb = load_of(b);
    float pair = 0; // sum of the fuller one of the two
    for (std::uint32_t t = 0; t < bins_; ++t) {
      std::size_t i = 0;
      while (i < 3 && (tops_[t].ranks[i] == a || tops_[t].ranks[i] == b))
        ++i;
      rest[t] = i < 3 ? std::max(tops_[t].rows[i], 0.0F) : 0;
      pair += std::max(la[t], lb[t]);
    }
    for (std::uint32_t i = 0; i < shape_.slots; ++i) {
      const std::uint32_t x = held(a, i);
      if (x == none || holds(b, x))
        continue;
      const float* sx = share_of(x);
      for (std::uint32_t j = 0; j < shape_.slots; ++j) {
        const std::uint32_t y = held(b, j);
        const float* sy = share_of(y);
        if (bins_ == 1 && (sx[0] <= sy[0] || sx[0] - sy[0] >= la[0] - lb[0]))
          continue;
        if (holds(a, y))
          continue;
        const swapped to = bins_ == 1   ? swap_rows<1>(la, lb, sx, sy, rest, 1)
                           : bins_ == 4 ? swap_rows<4>(la, lb, sx, sy, rest, 4)
                                        : swap_rows<0>(la, lb, sx, sy, rest, bins_);
        const double gain = peak - static_cast<double>(to.peak);
        const double even = static_cast<double>(pair - to.pair);
        const improvement found{gain, y == none ? 1U : 2U, 2, {{{b, j, x}, {a, i, y}}}};
        if (found.beats(best) || (!best.beats(found) && even > best_even)) {
          best = found;
          best_even = even;
        }
      }
    }
  }
}

/// Gives slot (b, slot) to expert y instead of the one it holds; `none` empties it.
void layer_balancer::try_copy(std::uint32_t y, std::uint32_t b, std::uint32_t slot, double peak,
                              improvement& best) {
  const std::uint32_t x = held(b, slot);
  const float* row_y = y == none ? zero_.data() : rows_.data() + std::size_t{y} * bins_;
  const float* row_x = x == none ? zero_.data() : rows_.data() + std::size_t{x} * bins_;
  const float* sy = share_of(y);
  const float* sx = share_of(x);
  const float more = y == none ? 1.0F : static_cast<float>(copies_[y] + 1);
  const float fewer = x == none ? 1.0F : static_cast<float>(copies_[x] - 1);
  const auto affected = [&](std::uint32_t r) { return r == b || holds(r, x) || holds(r, y); };
  float after = 0;
  for (std::uint32_t t = 0; t < bins_; ++t) {
    const float fall = sy[t] - row_y[t] / more, rise = row_x[t] / fewer - sx[t];
    float most = load_of(b)[t] - sx[t] + row_y[t] / more;
    const auto changed = [&](std::uint32_t r) {
      if (r == b)
        return;
      const float load = load_of(r)[t] - (holds(r, y) ? fall : 0) + (holds(r, x) ? rise : 0);
      most = std::max(most, load);
    };
    for (std::size_t w = 0; w < words_; ++w)
      for (const std::uint32_t e : {x, y})
        for (std::uint64_t bits = e == none ? 0 : holders_[e * words_ + w]; bits; bits &= bits - 1)
          changed(static_cast<std::uint32_t>(w * 64)
                  + static_cast<std::uint32_t>(std::countr_zero(bits)));
    std::size_t i = 0;
    while (i < tops_kept && tops_[t].ranks[i] != none && affected(tops_[t].ranks[i]))
      ++i;
    if (i < tops_kept)
      most = std::max(most, tops_[t].rows[i]);
    else
      for (std::uint32_t r = 0; r < shape_.ranks; ++r)
        if (!affected(r))
          most = std::max(most, load_of(r)[t]);
    after += most;
    if (static_cast<double>(after) >= peak)
      return;
  }
  const improvement found{
      peak - static_cast<double>(after), y == none ? 0U : 1U, 1, {{{b, slot, y}, {}}}};
  if (found.beats(best))
    best = found;
}

/// Rank a lets go of a copy: the other holders take its rows.
void layer_balancer::try_drops(std::uint32_t a, double peak, improvement& best) {
  for (std::uint32_t s = 0; s < shape_.slots; ++s)
    if (const std::uint32_t x = held(a, s); x != none && copies_[x] > 1)
      try_copy(none, a, s, peak, best);
}

/// Copies of what is heavy on rank a, in place of something that has a copy elsewhere.
void layer_balancer::try_copies(std::uint32_t a, double peak, improvement& best) {
  std::uint32_t heavy[2] = {none, none};
  for (std::uint32_t i = 0; i < shape_.slots; ++i) {
    const std::uint32_t y = held(a, i);
    if (y == none || copies_[y] >= copies_max(y))
      continue;
    if (heavy[0] == none || weights_[y] > weights_[heavy[0]]) {
      heavy[1] = heavy[0];
      heavy[0] = y;
    } else if (heavy[1] == none || weights_[y] > weights_[heavy[1]]) {
      heavy[1] = y;
    }
  }
  for (const std::uint32_t y : heavy) {
    if (y == none)
      continue;
    const float added =
        weights_[y] * static_cast<float>(copies_[y]) / static_cast<float>(copies_[y] + 1);
    for (const std::uint32_t b : lightest_) {
      if (b == a || holds(b, y) || !may_hold(b, y))
        continue;
      for (std::uint32_t s = 0; s < shape_.slots; ++s) {
        const std::uint32_t x = held(b, s);
        if (x != none && copies_[x] < 2)
          continue;
        if (bins_ == 1
            && static_cast<double>(totals_[b] - (x == none ? 0 : weights_[x]) + added) >= peak)
          continue;
        try_copy(y, b, s, peak, best);
      }
    }
  }
}

void layer_balancer::apply(const improvement& i) {
  if (i.count == 2) {
    put(i.changes[1].rank, i.changes[1].slot, none); // no rank holds an expert twice meanwhile
    put(i.changes[0].rank, i.changes[0].slot, i.changes[0].expert);
    put(i.changes[1].rank, i.changes[1].slot, i.changes[1].expert);
  } else {
    const slot_change& c = i.changes[0];
    const std::uint32_t x = held(c.rank, c.slot);
    put(c.rank, c.slot, c.expert);
    if (x != none)
      set_copies(x, copies_[x] - 1);
    if (c.expert != none)
      set_copies(c.expert, copies_[c.expert] + 1);
    recount();
  }
}

/// The ranks with the fewest rows, as partners of a full one.
void layer_balancer::find_lightest(std::size_t count) {
  lightest_.resize(shape_.ranks);
  std::iota(lightest_.begin(), lightest_.end(), 0U);
  count = std::min<std::size_t>(count, shape_.ranks);
  std::partial_sort(lightest_.begin(), lightest_.begin() + static_cast<std::ptrdiff_t>(count),
                    lightest_.end(), [this](std::uint32_t a, std::uint32_t b) {
                      return totals_[a] != totals_[b] ? totals_[a] < totals_[b] : a < b;
                    });
  lightest_.resize(count);
}

/// The best change of a slot on the fullest ranks of `bins` bins from `first` on.
improvement layer_balancer::find_best(std::uint32_t first, std::uint32_t bins, double peak,
                                      bool even_out) {
  const bool large = held_.size() >= large_slots;
  improvement best{0, 1, 0, {}};
  double best_even = even_out ? peak * static_cast<double>(too_small) : peak * 2;
  for (std::uint32_t i = 0; i < bins; ++i) {
    const top& full = tops_[(first + i) % bins_];
    const std::uint32_t a = full.ranks[0];
    bool seen = full.rows[0] <= 0;
    for (std::uint32_t u = 0; u < i; ++u)
      seen = seen || tops_[(first + u) % bins_].ranks[0] == a;
    if (seen)
      continue;
    try_swaps(a, peak, best, best_even);
    // Free to move: swaps are tried first, as they are cheap to try. Else a copy costs one move,
    // and a slot is not given up.
    if (even_out && large && best.gain > peak * gain_wanted)
      continue;
    try_copies(a, peak, best);
    if (even_out && (!large || best.gain <= peak * gain_wanted))
      try_drops(a, peak, best);
  }
  return best;
}

void layer_balancer::improve(std::uint32_t rounds_max, std::uint32_t moves_max, double gain_min,
                             bool even_out, std::vector<improvement>* log) {
  const double mean =
      std::accumulate(totals_.begin(), totals_.end(), 0.0) / static_cast<double>(shape_.ranks);
  // With many slots a look costs more than what a slightly better change saves: one bin at a time.
  const bool large = held_.size() >= large_slots;
  const std::uint32_t at_once = large ? 1 : bins_;
  std::uint32_t idle = 0; // rounds in a row without a change
  for (std::uint32_t round = 0; round < rounds_max && idle * at_once < bins_; ++round) {
    const double peak = find_tops();
    if (even_out && peak <= (large ? even_enough : 1) * mean)
      return;
    find_lightest(large && bins_ > 1 ? light_ranks_max / 2 : light_ranks_max);
    const improvement best = find_best(round % bins_, at_once, peak, even_out);
    const double least = std::max(gain_min * best.moves, peak * static_cast<double>(too_small));
    const bool evens_out = even_out && best.gain >= 0 && best.count == 2;
    if (best.count == 0 || best.moves > moves_max || (best.gain <= least && !evens_out)) {
      ++idle;
      continue;
    }
    idle = 0;
    apply(best);
    moves_max -= best.moves;
    if (log)
      log->push_back(best);
  }
}

/// One or two random legal changes.
void layer_balancer::disturb(splitmix& random) {
  const auto below = [&random](std::uint32_t n) { return random.below(n); };
  for (std::uint32_t change = 1 + below(3); change > 0; --change)
    for (int tries = 0; tries < 8; ++tries) {
      const std::uint32_t a = below(shape_.ranks), b = below(shape_.ranks);
      const std::uint32_t i = below(shape_.slots), j = below(shape_.slots);
      const std::uint32_t x = held(a, i), y = held(b, j);
      if (a == b || x == y || !may_hold(a, y) || !may_hold(b, x) || holds(b, x))
        continue;
      if (below(2) == 0) {
        if (x == none || (y != none && copies_[y] < 2))
          continue;
        apply({0, 1, 1, {{{b, j, x}, {}}}}); // a copy of x in place of y
      } else {
        if (holds(a, y))
          continue;
        apply({0, 2, 2, {{{b, j, x}, {a, i, y}}}});
      }
      break;
    }
}

void layer_balancer::shake(std::uint32_t times, std::uint32_t rounds_max) {
  splitmix random{1};
  double best = peak_sum();
  const double mean =
      std::accumulate(totals_.begin(), totals_.end(), 0.0) / static_cast<double>(shape_.ranks);
  std::vector<std::uint32_t> kept(held_);
  for (; times > 0 && best > mean * (1 + 1e-5); --times) {
    disturb(random);
    improve(rounds_max, ~0U, 0, true, nullptr);
    const double now = peak_sum();
    if (now <= best) {
      best = now;
      kept = held_;
    } else {
      adopt(kept);
    }
  }
}

} // namespace di::engine
