// SPDX-License-Identifier: Apache-2.0
// Repairing and levelling, one layer after the other.
#include "engine/moe/placement_repair.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace di::engine {

namespace {

constexpr std::uint32_t none = placement::empty_slot;

/// The slots of one layer: who holds what, how often, and how many rows that makes.
class layer_slots {
public:
  /// @param held  [ranks, slots]
  layer_slots(std::vector<std::uint32_t> held, std::size_t ranks, std::vector<double> weights)
      : held_{std::move(held)},
        slots_{held_.size() / ranks},
        ranks_{ranks},
        weights_{std::move(weights)},
        copies_(weights_.size()),
        count_(ranks),
        load_(ranks) {
    for (const std::uint32_t e : held_)
      if (e != none)
        ++copies_[e];
    for (std::size_t r = 0; r < ranks_; ++r)
      recount(r);
  }
  const std::vector<std::uint32_t>& held() const noexcept { return held_; }

  /// Every expert gets a holder. @pre ranks * slots >= experts
  void place_lost() {
    std::vector<std::uint32_t> lost;
    for (std::uint32_t e = 0; e < weights_.size(); ++e)
      if (copies_[e] == 0)
        lost.push_back(e);
    std::stable_sort(lost.begin(), lost.end(),
                     [this](auto a, auto b) { return weights_[a] > weights_[b]; });
    for (const std::uint32_t e : lost) {
      const std::size_t rank = lightest(e, std::vector<std::size_t>(ranks_, slots_));
      if (rank < ranks_)
        put(rank, free_slot(rank), e);
      else
        replace_copy(e);
    }
  }
  /// At most `most` experts on each rank, in the first slots, evenly; copies until there are
  /// `total` of all.
  void level(std::span<const std::uint32_t> most, std::size_t total) {
    const std::vector<std::size_t> room(most.begin(), most.end());
    drop_copies(std::accumulate(room.begin(), room.end(), std::size_t{0}));
    while (give(room)) {
    }
    for (std::size_t r = 0; r < ranks_; ++r)
      compact(r);
    fill(room, total);
  }

private:
  double share(std::uint32_t e) const { return weights_[e] / std::max(copies_[e], 1U); }
  std::span<std::uint32_t> row(std::size_t rank) {
    return std::span{held_}.subspan(rank * slots_, slots_);
  }
  bool holds(std::size_t rank, std::uint32_t e) {
    const auto r = row(rank);
    return std::find(r.begin(), r.end(), e) != r.end();
  }
  std::size_t free_slot(std::size_t rank) {
    const auto r = row(rank);
    return static_cast<std::size_t>(std::find(r.begin(), r.end(), none) - r.begin());
  }
  void recount(std::size_t rank) {
    count_[rank] = 0;
    load_[rank] = 0;
    for (const std::uint32_t e : row(rank))
      if (e != none) {
        ++count_[rank];
        load_[rank] += share(e);
      }
  }
  /// Another copy changes what each of them gets.
  void recount_holders(std::uint32_t e) {
    for (std::size_t r = 0; r < ranks_; ++r)
      if (holds(r, e))
        recount(r);
  }
  void put(std::size_t rank, std::size_t slot, std::uint32_t e) {
    row(rank)[slot] = e;
    ++copies_[e];
    recount_holders(e);
  }
  void clear(std::size_t rank, std::uint32_t e) {
    const auto r = row(rank);
    *std::find(r.begin(), r.end(), e) = none;
    --copies_[e];
    recount(rank);
    recount_holders(e);
  }
  /// The rank with the fewest rows that lacks the expert and has room; ranks_ if there is none.
  std::size_t lightest(std::uint32_t e, const std::vector<std::size_t>& room) {
    std::size_t best = ranks_;
    for (std::size_t r = 0; r < ranks_; ++r)
      if (count_[r] < room[r] && !holds(r, e)
          && (best == ranks_
              || std::pair{load_[r], count_[r]} < std::pair{load_[best], count_[best]}))
        best = r;
    return best;
  }
  /// All slots are taken, so some expert has two: the lightest copy makes room.
  void replace_copy(std::uint32_t e) {
    std::size_t best = held_.size();
    for (std::size_t s = 0; s < held_.size(); ++s)
      if (held_[s] != none && copies_[held_[s]] > 1
          && (best == held_.size() || share(held_[s]) < share(held_[best])))
        best = s;
    if (best == held_.size())
      return; // placement::from() refuses what comes out
    const std::size_t rank = best / slots_;
    clear(rank, held_[best]);
    put(rank, best % slots_, e);
  }
  /// The lightest expert of a rank that others have too; none if there is none.
  std::uint32_t lightest_copy(std::size_t rank) {
    std::uint32_t best = none;
    for (const std::uint32_t e : row(rank))
      if (e != none && copies_[e] > 1 && (best == none || share(e) < share(best)))
        best = e;
    return best;
  }
  std::size_t all() const { return std::accumulate(count_.begin(), count_.end(), std::size_t{0}); }
  /// As long as there are more copies than slots, the fullest ranks let go of some.
  void drop_copies(std::size_t slots) {
    for (std::size_t left = all(); left > slots; --left) {
      std::size_t from = ranks_;
      for (std::size_t r = 0; r < ranks_; ++r)
        if (lightest_copy(r) != none
            && (from == ranks_
                || std::pair{count_[r], load_[r]} > std::pair{count_[from], load_[from]}))
          from = r;
      if (from == ranks_)
        return;
      clear(from, lightest_copy(from));
    }
  }
  /// One expert goes from a rank that has too many, or two more than another, to the lightest with
  /// room. @return false: nobody has too many
  bool give(const std::vector<std::size_t>& room) {
    const auto excess = [&](std::size_t r) { return count_[r] - std::min(count_[r], room[r]); };
    const auto rank_of = [&](std::size_t r) { return std::tuple{excess(r), count_[r], load_[r]}; };
    std::size_t from = 0;
    for (std::size_t r = 1; r < ranks_; ++r)
      if (rank_of(r) > rank_of(from))
        from = r;
    if (count_[from] == 0)
      return false;
    std::vector<std::size_t> below = room;
    if (excess(from) == 0)
      for (std::size_t& b : below)
        b = std::min(b, count_[from] - 1);
    std::uint32_t best = none;
    std::size_t best_to = ranks_;
    double best_peak = 0;
    for (const std::uint32_t e : row(from)) {
      const std::size_t to = e == none ? ranks_ : lightest(e, below);
      if (to == ranks_)
        continue;
      const double peak = std::max(load_[from] - share(e), load_[to] + share(e));
      if (best == none || peak < best_peak) {
        best = e;
        best_to = to;
        best_peak = peak;
      }
    }
    if (best != none) {
      clear(from, best);
      put(best_to, free_slot(best_to), best);
      return true;
    }
    const std::uint32_t copy = lightest_copy(from); // whoever has room holds all of it already
    if (excess(from) == 0 || copy == none)
      return false;
    clear(from, copy);
    return true;
  }
  void compact(std::size_t rank) {
    const auto r = row(rank);
    for (std::size_t s = count_[rank]; s < slots_; ++s)
      if (r[s] != none)
        std::swap(r[free_slot(rank)], r[s]);
  }
  void fill(const std::vector<std::size_t>& room, std::size_t total) {
    for (std::size_t have = all(); have < total; ++have) {
      std::size_t to = ranks_;
      for (std::size_t r = 0; r < ranks_; ++r)
        if (count_[r] < std::min(room[r], weights_.size())
            && (to == ranks_ || std::pair{count_[r], load_[r]} < std::pair{count_[to], load_[to]}))
          to = r;
      if (to == ranks_)
        return;
      std::uint32_t best = none;
      for (std::uint32_t e = 0; e < weights_.size(); ++e)
        if (!holds(to, e) && (best == none || share(e) > share(best)))
          best = e;
      put(to, free_slot(to), best);
    }
  }

  std::vector<std::uint32_t> held_;
  std::size_t slots_, ranks_;
  std::vector<double> weights_;       ///< [experts] rows
  std::vector<std::uint32_t> copies_; ///< [experts]
  std::vector<std::size_t> count_;    ///< [ranks] slots in use
  std::vector<double> load_;          ///< [ranks] rows
};

/// Rows of a layer's experts, or of all layers; never nothing.
std::vector<double> weights_of(const load_view& load, std::uint32_t experts, std::uint32_t layer,
                               bool all_layers) {
  std::vector<double> weights(experts, 1e-3);
  if (load.experts != experts || layer >= load.layers
      || load.rows.size() != std::size_t{load.bins} * load.layers * experts)
    return weights;
  for (std::uint32_t bin = 0; bin < load.bins; ++bin)
    for (std::uint32_t l = all_layers ? 0 : layer; l < (all_layers ? load.layers : layer + 1); ++l)
      for (std::uint32_t e = 0; e < experts; ++e)
        weights[e] +=
            static_cast<double>(load.rows[(std::size_t{bin} * load.layers + l) * experts + e]);
  return weights;
}

} // namespace

result<placement> repaired(const placement& old, const repair_wish& wish,
                           std::span<const load_view> loads) {
  if (wish.ranks.empty())
    return fail(ec::bad_argument, "a placement needs at least one rank");
  proto::placement_published m;
  m.placement = wish.version;
  m.view = wish.view;
  for (const placed_rank& r : wish.ranks) {
    m.ranks.push_back(r.rank);
    m.lives.push_back(r.life);
  }
  const std::vector<proto::placement_group>& groups = old.published().groups;
  const auto ranks = static_cast<std::uint32_t>(wish.ranks.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    proto::placement_group group = groups[g];
    group.slots = std::max(group.slots, slots_per_rank(group.experts, wish.redundant, ranks));
    const bool same = groups[g].expert_of_slot.size() == old.ranks() * groups[g].slots;
    group.expert_of_slot.clear();
    for (std::uint32_t layer = 0; layer < (same ? 1 : group.layers); ++layer) {
      std::vector<std::uint32_t> held(std::size_t{ranks} * group.slots, none);
      for (std::size_t r = 0; r < ranks; ++r)
        if (const auto before = old.index_of(wish.ranks[r].rank)) {
          const auto kept = old.held(*before, layer_id{group.first_layer + layer});
          std::copy(kept.begin(), kept.end(),
                    held.begin() + static_cast<std::ptrdiff_t>(r * group.slots));
        }
      layer_slots one{
          std::move(held), ranks,
          weights_of(g < loads.size() ? loads[g] : load_view{}, group.experts, layer, same)};
      one.place_lost();
      group.expert_of_slot.insert(group.expert_of_slot.end(), one.held().begin(), one.held().end());
    }
    m.groups.push_back(std::move(group));
  }
  return placement::from(m);
}

std::vector<std::uint32_t> slots_by_speed(std::uint32_t experts, std::uint32_t redundant,
                                          std::uint32_t ranks, std::span<const double> slowness,
                                          std::uint32_t slots_max) {
  const std::uint32_t even = slots_per_rank(experts, redundant, ranks);
  std::vector<std::uint32_t> most(ranks, even);
  if (slowness.size() != ranks)
    return most;
  double speed = 0; // of all; a rank as fast as most has 1
  for (const double s : slowness)
    speed += 1 / std::max(s, 1.0);
  std::uint32_t fast = 0;
  std::uint64_t left = std::uint64_t{experts} + redundant;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    fast += !(slowness[r] > 1);
    if (slowness[r] > 1) {
      most[r] = std::min(even, static_cast<std::uint32_t>(static_cast<double>(experts + redundant)
                                                          / (slowness[r] * speed)));
      left -= std::min<std::uint64_t>(left, most[r]);
    }
  }
  if (fast == 0)
    return std::vector<std::uint32_t>(ranks, even);
  const std::uint32_t bound = std::min(std::max(slots_max, even), experts);
  const auto share =
      static_cast<std::uint32_t>(std::min<std::uint64_t>((left + fast - 1) / fast, bound));
  std::uint64_t room = 0;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (!(slowness[r] > 1))
      most[r] = std::max(share, std::min(even, bound));
    room += most[r];
  }
  for (std::uint32_t r = 0; room < experts; r = (r + 1) % ranks) // what fits nowhere else
    if (most[r] < bound) {
      ++most[r];
      ++room;
    }
  return most;
}

std::vector<std::uint32_t> levelled(const placement& p, std::size_t group, std::uint32_t redundant,
                                    std::span<const std::uint32_t> most, const load_view& load) {
  const proto::placement_group& g = p.published().groups[group];
  std::vector<std::uint32_t> all;
  for (std::uint32_t layer = 0; layer < g.layers; ++layer) {
    std::vector<std::uint32_t> held;
    for (std::size_t r = 0; r < p.ranks(); ++r) {
      const auto of_rank = p.held(r, layer_id{g.first_layer + layer});
      held.insert(held.end(), of_rank.begin(), of_rank.end());
    }
    layer_slots one{std::move(held), p.ranks(), weights_of(load, g.experts, layer, false)};
    one.level(most, std::size_t{g.experts} + redundant);
    all.insert(all.end(), one.held().begin(), one.held().end());
  }
  return all;
}

bool widen(proto::placement_group& group, std::uint32_t slots) {
  if (slots <= group.slots)
    return false;
  std::vector<std::uint32_t> wider;
  for (std::size_t row = 0; row < group.expert_of_slot.size(); row += group.slots) {
    const auto begin = group.expert_of_slot.begin() + static_cast<std::ptrdiff_t>(row);
    wider.insert(wider.end(), begin, begin + group.slots);
    wider.insert(wider.end(), slots - group.slots, none);
  }
  group.expert_of_slot = std::move(wider);
  group.slots = slots;
  return true;
}

bool narrow(proto::placement_group& group, std::uint32_t slots) {
  std::uint32_t used = std::max(slots, 1U);
  for (std::size_t s = 0; s < group.expert_of_slot.size(); ++s)
    if (group.expert_of_slot[s] != none)
      used = std::max(used, static_cast<std::uint32_t>(s % group.slots) + 1);
  if (used >= group.slots)
    return false;
  std::vector<std::uint32_t> kept;
  for (std::size_t row = 0; row < group.expert_of_slot.size(); row += group.slots)
    kept.insert(kept.end(), group.expert_of_slot.begin() + static_cast<std::ptrdiff_t>(row),
                group.expert_of_slot.begin() + static_cast<std::ptrdiff_t>(row + used));
  group.expert_of_slot = std::move(kept);
  group.slots = used;
  return true;
}

} // namespace di::engine
