// SPDX-License-Identifier: Apache-2.0
// From loads to plans, and from plans to placements that everyone follows.
#include "engine/core/rebalancer_core.hpp"

#include "engine/core/expert_shard_core.hpp" // rank_path, shard_path
#include "engine/core/resend.hpp"
#include "engine/moe/eplb.hpp"
#include "engine/moe/placement_repair.hpp"
#include "engine/moe/random_placement.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/base/trace.hpp"

#include <algorithm>

namespace di::engine {

rebalancer_core::rebalancer_core(rebalancer_options options)
    : options_{std::move(options)},
      loads_{options_.groups, options_.policy.bins},
      heat_{options_.groups, 1} {
}

// --- bringing a placement about

namespace {
constexpr unsigned version_bits = 20; ///< of a placement inside its view
} // namespace

std::uint64_t rebalancer_core::next_version(epoch view) {
  return version_ = std::max(version_, view.v << version_bits) + 1;
}

std::vector<load_view> rebalancer_core::load_views() const {
  std::vector<load_view> views;
  for (std::size_t g = 0; g < options_.groups.size(); ++g)
    views.push_back(loads_.view(g));
  return views;
}

result<void> rebalancer_core::install_view(epoch view, std::span<const placed_rank> ranks, instant,
                                           outbox& out) {
  if (view <= seen_view_)
    return {};
  seen_view_ = view;
  goal_.clear(); // a plan for other ranks
  progress_.clear();
  parked_ = ranks.size() < std::max(options_.ranks_min, 1U);
  if (parked_) {
    phase_ = phase::idle;
    waiting_.clear();
    out.count("di_rebalancer_views_parked_total");
    return {};
  }
  const epoch version{next_version(view)};
  uneven_ = placement_.ranks() > 0;
  if (uneven_) {
    const std::vector<load_view> loads = load_views();
    DI_TRY(placement_, repaired(placement_, {ranks, version, view, options_.redundant}, loads));
    loads_.fade(); // what was busy most likely still is
  } else {
    DI_TRY(placement_,
           placement::contiguous(options_.groups, ranks, options_.redundant, version, view));
  }
  publish(out);
  return {};
}

result<void> rebalancer_core::on(const proto::view_committed& m, instant now, outbox& out) {
  std::vector<placed_rank> ranks;
  for (const proto::view_member& member : m.members)
    ranks.push_back({member.rank, member.life});
  return install_view(m.view, ranks, now, out);
}

void rebalancer_core::publish(outbox& out) {
  phase_ = phase::publishing;
  waiting_.clear();
  for (const rank_id r : placement_.published().ranks) {
    waiting_.insert(rank_path(r));
    waiting_.insert(shard_path(r));
  }
  out.count("di_rebalancer_placements_total");
  begin_sending(out);
}

void rebalancer_core::begin_sending(outbox& out) {
  wait_ = options_.resend_after;
  send_all(out);
}

void rebalancer_core::send_all(outbox& out) {
  for (const address& who : waiting_)
    if (phase_ == phase::proposing)
      out.send(who, proto::placement_proposed{next_.published()});
    else
      out.send(who, placement_.published());
  out.arm({resend_due, version_}, wait_);
}

/// The next layers of the plan, as many as an epoch may load, at least one. Nothing if all are
/// where they should be.
void rebalancer_core::propose_next(outbox& out) {
  proto::placement_published m = placement_.published();
  const std::uint32_t ranks = static_cast<std::uint32_t>(placement_.ranks());
  std::uint32_t moves = 0, layers = 0;
  for (std::size_t g = 0; g < goal_.size(); ++g) {
    proto::placement_group& group = m.groups[g];
    const std::size_t of_layer = std::size_t{ranks} * group.slots;
    table now = table_of(g);
    for (std::uint32_t layer = 0; layer < group.layers; ++layer) {
      const auto wanted = std::span{goal_[g]}.subspan(layer * of_layer, of_layer);
      const auto held = std::span{now}.subspan(layer * of_layer, of_layer);
      const std::uint32_t cost = moves_between(held, wanted, ranks);
      if (std::equal(held.begin(), held.end(), wanted.begin())
          || (layers > 0 && moves + cost > options_.policy.epoch_moves))
        continue;
      std::copy(wanted.begin(), wanted.end(), held.begin());
      moves += cost;
      ++layers;
    }
    group.expert_of_slot = std::move(now);
  }
  if (layers == 0) {
    goal_.clear();
    return;
  }
  bool there = true;
  for (std::size_t g = 0; g < goal_.size(); ++g)
    there = there && m.groups[g].expert_of_slot == goal_[g];
  if (there) { // slots that only a smaller group needed are empty now
    goal_.clear();
    for (proto::placement_group& group : m.groups)
      narrow(group, slots_per_rank(group.experts, options_.redundant, ranks));
  }
  m.placement = epoch{next_version(placement_.view())};
  auto made = placement::from(m);
  if (!made) { // a plan is legal; whatever is wrong, experts stay where they are
    out.count("di_rebalancer_plans_failed_total");
    goal_.clear();
    return;
  }
  next_ = std::move(*made);
  phase_ = phase::proposing;
  for (const rank_id r : next_.published().ranks)
    waiting_.insert(shard_path(r));
  out.count("di_rebalancer_moves_total", moves);
  out.count("di_rebalancer_layers_total", layers);
  begin_sending(out);
}

result<void> rebalancer_core::on(const proto::placement_prepared& m, instant, outbox& out) {
  const auto index = next_.index_of(m.rank);
  if (phase_ != phase::proposing || m.placement != next_.version() || !index
      || next_.rank_at(*index).life != m.life || waiting_.erase(shard_path(m.rank)) == 0)
    return {};
  out.count("di_rebalancer_slots_loaded_total", m.loaded);
  if (waiting_.empty()) {
    placement_ = next_;
    publish(out);
  }
  return {};
}

result<void> rebalancer_core::on(const proto::placement_installed& m, instant, outbox& out) {
  if (m.placement.v > version_) {
    overtake(m.placement, out);
    return {};
  }
  if (phase_ != phase::publishing || m.placement != placement_.version()
      || waiting_.erase(m.who) == 0 || (!waiting_.empty() && !planted("releases_what_is_asked")))
    return {};
  waiting_.clear();
  settle(out);
  return {};
}

/// Somebody follows a placement that another life of control made: ours must be newer.
void rebalancer_core::overtake(epoch seen, outbox& out) {
  if (placement_.ranks() == 0 || parked_ || seen.v == ~std::uint64_t{0})
    return;
  proto::placement_published m = placement_.published();
  m.placement = epoch{seen.v + 1};
  auto made = placement::from(m);
  if (!made)
    return;
  version_ = seen.v + 1;
  placement_ = std::move(*made);
  goal_.clear();
  reached("rebalancer.overtakes");
  out.count("di_rebalancer_overtaken_total");
  publish(out);
}

result<void> rebalancer_core::on(const proto::ranks_slow& m, instant, outbox& out) {
  slow_.clear();
  for (std::size_t i = 0; i < std::min({m.ranks.size(), m.lives.size(), m.percent.size()}); ++i)
    slow_[{m.ranks[i], m.lives[i]}] = std::max(1.0, m.percent[i] / 100.0);
  uneven_ = placement_.ranks() > 0;
  if (uneven_ && settled()) {
    level();
    propose_next(out);
  }
  return {};
}

/// Of the placement's ranks; empty: all are alike.
std::vector<double> rebalancer_core::slowness() const {
  std::vector<double> all;
  bool any = false;
  for (std::size_t i = 0; i < placement_.ranks(); ++i) {
    const placed_rank who = placement_.rank_at(i);
    const auto at = slow_.find({who.rank, who.life});
    all.push_back(at == slow_.end() ? 1.0 : at->second);
    any = any || at != slow_.end();
  }
  return any ? all : std::vector<double>{};
}

/// A plan of its own for what a repair left uneven, or a slow rank has too much of.
void rebalancer_core::level() {
  uneven_ = false;
  goal_.clear();
  const std::vector<double> slow = slowness();
  const auto ranks = static_cast<std::uint32_t>(placement_.ranks());
  proto::placement_published m = placement_.published();
  std::vector<std::vector<std::uint32_t>> most;
  for (proto::placement_group& g : m.groups) {
    const std::uint32_t reserved = slots_per_rank(
        g.experts, options_.redundant, std::min(std::max(options_.ranks_min, 1U), ranks));
    most.push_back(slots_by_speed(g.experts, options_.redundant, ranks, slow, reserved));
    widen(g, *std::max_element(most.back().begin(), most.back().end()));
  }
  auto wider = placement::from(m);
  if (!wider)
    return;
  placement_ = std::move(*wider); // more empty slots, the same experts
  for (std::size_t g = 0; g < options_.groups.size(); ++g)
    goal_.push_back(levelled(placement_, g, options_.redundant, most[g], loads_.view(g)));
}

void rebalancer_core::settle(outbox& out) {
  phase_ = phase::idle;
  const proto::placement_settled settled{placement_.version(), placement_.view(),
                                         placement_.published().ranks,
                                         placement_.published().lives};
  if (told_view_ < placement_.view()) { // where experts live is nothing to them, only the ranks
    told_view_ = placement_.view();
    for (const address& who : options_.listeners)
      out.send(who, settled);
  }
  for (const rank_id r : settled.ranks)
    out.send(shard_path(r), settled);
  if (goal_.empty() && uneven_)
    level();
  if (!goal_.empty())
    propose_next(out);
}

result<void> rebalancer_core::on_due(timer which, instant, outbox& out) {
  if (which.kind == resend_due && which.key == version_ && !waiting_.empty()
      && !planted("placement_not_resent")) {
    reached("rebalancer.publishes_again");
    wait_ = longer(wait_);
    send_all(out);
  }
  return {};
}

// --- deciding where experts should live

rebalancer_core::table rebalancer_core::table_of(std::size_t group) const {
  const proto::placement_group& g = placement_.published().groups[group];
  table all;
  for (std::uint32_t layer = 0; layer < g.layers; ++layer)
    for (std::size_t rank = 0; rank < placement_.ranks(); ++rank) {
      const auto held = placement_.held(rank, layer_id{g.first_layer + layer});
      all.insert(all.end(), held.begin(), held.end());
    }
  return all;
}

/// Windows count while a placement is settled, from the first that began under it.
result<void> rebalancer_core::on(const proto::expert_load& m, instant, outbox& out) {
  if (options_.policy.mode == rebalance_mode::off)
    return {};
  const auto index = placement_.index_of(m.rank);
  if (!index || placement_.rank_at(*index).life != m.life)
    return {};        // of another life
  (void)heat_.add(m); // what is malformed is counted below
  progress& p = progress_[m.rank];
  const bool whole = p.placement == m.placement; // the window before ended under it too
  p.placement = m.placement;
  if (m.placement != placement_.version() || !settled())
    return {};
  if (whole) {
    if (const auto added = loads_.add(m); !added) {
      out.count("di_rebalancer_loads_refused_total");
      return {};
    }
    out.count("di_rebalancer_loads_total");
  }
  if (whole || options_.policy.mode == rebalance_mode::forced)
    p.steps += m.steps;
  return p.steps >= options_.policy.interval_steps ? look(out) : result<void>{};
}

/// A gauge from counters: the sum of what was counted is its value.
void rebalancer_core::show(std::string_view metric, double& shown, double value, outbox& out) {
  out.count(metric, value - shown);
  shown = value;
}

/// An interval is over.
result<void> rebalancer_core::look(outbox& out) {
  for (auto& [rank, p] : progress_)
    p.steps = 0;
  heat_.fade();
  if (options_.policy.mode == rebalance_mode::forced) {
    plan_randomly();
    out.count("di_rebalancer_plans_total");
    propose_next(out);
    return {};
  }
  rank_balance balance;
  for (std::size_t g = 0; g < options_.groups.size(); ++g) {
    const rank_balance b =
        balance_of(loads_.view(g), static_cast<std::uint32_t>(placement_.ranks()), table_of(g));
    balance.peak += b.peak;
    balance.mean += b.mean;
  }
  if (balance.mean <= 0)
    return {};
  out.count("di_rebalancer_peak_rows_total", balance.peak);
  out.count("di_rebalancer_mean_rows_total", balance.mean);
  show("di_rebalancer_moe_lb", shown_, balance.ratio(), out);
  trace::mark(trace::kind::balance, {}, {.value = static_cast<float>(balance.ratio())});
  active_ = balance.ratio() > (active_ ? options_.policy.end_below : options_.policy.begin_above);
  if (active_)
    DI_TRY_VOID(plan(out));
  if (goal_.empty())
    loads_.fade();
  else
    loads_.clear(); // what comes next is measured under the new placement
  propose_next(out);
  return {};
}

result<void> rebalancer_core::plan(outbox& out) {
  const auto ranks = static_cast<std::uint32_t>(placement_.ranks());
  std::uint32_t moves = 0;
  rank_balance before, after;
  std::vector<table> goal;
  for (std::size_t g = 0; g < options_.groups.size(); ++g) {
    eplb_shape shape;
    shape.ranks = ranks;
    shape.slots = placement_.published().groups[g].slots;
    DI_TRY(eplb_plan made,
           plan_experts(loads_.view(g), shape,
                        {options_.policy.moves_max - moves, options_.policy.gain_min},
                        table_of(g)));
    moves += made.moves;
    before.peak += made.peak_before;
    after.peak += made.peak_after;
    before.mean += made.mean;
    goal.push_back(std::move(made.expert_of_slot));
  }
  after.mean = before.mean;
  if (moves == 0) {
    active_ = false; // nothing gains enough
    return {};
  }
  goal_ = std::move(goal);
  out.count("di_rebalancer_plans_total");
  show("di_rebalancer_plan_moe_lb_before", shown_before_, before.ratio(), out);
  show("di_rebalancer_plan_moe_lb_after", shown_after_, after.ratio(), out);
  trace::mark(trace::kind::plan, {}, {.rows = moves, .value = static_cast<float>(after.ratio())});
  return {};
}

void rebalancer_core::plan_randomly() {
  goal_.clear();
  ++forced_;
  for (std::size_t g = 0; g < options_.groups.size(); ++g) {
    const expert_layers& layers = options_.groups[g];
    goal_.push_back(random_placement(layers, static_cast<std::uint32_t>(placement_.ranks()),
                                     placement_.published().groups[g].slots,
                                     options_.policy.seed + (forced_ << 8) + g));
  }
}

void rebalancer_core::check() const {
  DI_CHECK(waiting_.size() <= 2 * placement_.ranks());
  DI_CHECK_EQ(waiting_.empty(), phase_ == phase::idle);
  DI_CHECK(phase_ != phase::proposing || next_.version().v == version_);
  DI_CHECK(placement_.version().v <= version_);
}

} // namespace di::engine
