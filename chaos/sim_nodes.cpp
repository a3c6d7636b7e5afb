// SPDX-License-Identifier: Apache-2.0
// Starting, killing and certifying.
#include "chaos/sim_nodes.hpp"

#include <fmt/format.h>

namespace di::sim {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// What actors/node_proxy is in the product: KEEPER's way to a node process.
class node_proxy {
public:
  explicit node_proxy(sim_nodes* nodes) : nodes_{nodes} {}
  result<proto::rank_started> on(const proto::start_rank& m, instant, outbox&) {
    const auto life = nodes_->start(m.rank);
    if (!life)
      return fail(ec::duplicate, "rank {} runs", m.rank.v);
    return proto::rank_started{m.rank, *life};
  }
  void on(const proto::kill_rank& m, instant, outbox&) { nodes_->kill(m); }

private:
  sim_nodes* nodes_;
};
struct node_proxy_type {
  static constexpr auto kind = "node_proxy";
  using core = node_proxy;
  using protocol = di::protocol<replies_to<proto::start_rank>::with<proto::rank_started>,
                                reacts_to<proto::kill_rank>>;
};

} // namespace

std::unique_ptr<core_handle> sim_nodes::make_proxy() {
  return wrap_core<node_proxy_type>(this);
}

incarnation sim_nodes::life_of(rank_id rank) const {
  const auto at = lives_.find(rank);
  return at == lives_.end() ? incarnation{} : at->second;
}

std::vector<rank_id> sim_nodes::ranks_of(node_id node) const {
  std::vector<rank_id> all;
  for (std::uint32_t r = 0; r < options_.ranks; ++r)
    if (node_of(rank_id{r}) == node)
      all.push_back(rank_id{r});
  return all;
}

void sim_nodes::tell(const address& to, parcel fact) {
  sim_process* control = world_.living("/control");
  if (!control)
    missed_.emplace_back(to, std::move(fact));
  else
    world_.inject(*control, to, std::move(fact), random_.span(microseconds{10}, microseconds{80}));
}

void sim_nodes::attach_control() {
  for (auto& [to, fact] : std::exchange(missed_, {}))
    tell(to, std::move(fact));
}

std::optional<incarnation> sim_nodes::start(rank_id rank, bool at_once) {
  if (running(rank))
    return std::nullopt;
  const incarnation life{random_.next() | 1U};
  lives_[rank] = life;
  if (at_once) {
    begin_rank(rank, life);
    return life;
  }
  loading_.insert(life);
  world_.after(random_.span(milliseconds{1}, options_.load_max), [this, rank, life] {
    if (life_of(rank) == life && loading_.erase(life) == 1)
      begin_rank(rank, life);
  });
  return life;
}

void sim_nodes::killed(rank_id rank, std::string why) {
  const incarnation life = life_of(rank);
  if (life.v == 0 || !dead_.insert(life).second)
    return;
  ++deaths_;
  hurt_.insert(life);
  loading_.erase(life);
  world_.kill(life, milliseconds{60});
  const duration certified = random_.span(microseconds{50}, options_.certify_max);
  world_.after(certified, [this, rank, life, why] {
    tell("/control/membership", parcel::of(proto::member_lost{rank, life, why}));
  });
  world_.after(certified + random_.span(duration{1}, options_.reap_max), [this, rank, life, why] {
    if (life_of(rank) == life)
      lives_.erase(rank);
    tell_exited(rank, life, why);
  });
}

void sim_nodes::tell_exited(rank_id rank, incarnation life, const std::string& why) {
  proto::rank_exited m;
  m.rank = rank;
  m.node = node_of(rank);
  m.life = life;
  m.signal = 9;
  m.words = why;
  tell("/control/keeper", parcel::of(m));
}

void sim_nodes::kill(const proto::kill_rank& m) {
  world_.after(random_.span(microseconds{20}, options_.kill_max), [this, m] {
    if (life_of(m.rank) == m.life)
      killed(m.rank, "killed: " + m.reason);
    else // KEEPER missed it, as control was away
      tell_exited(m.rank, m.life, "it is gone");
  });
}

void sim_nodes::stop(rank_id rank, duration lasting) {
  const incarnation life = life_of(rank);
  sim_process* p = world_.find(life);
  if (!p || p->state != process_state::running)
    return;
  if (lasting >= options_.stuck_after)
    hurt_.insert(life);
  world_.stop(life);
  stopped_at_[life] = world_.now();
  world_.after(lasting, [this, life] { world_.resume(life); });
  look_at(rank, life, world_.now());
}

/// Sees a process that is stopped for too long, and says so once a second.
void sim_nodes::look_at(rank_id rank, incarnation life, instant since) {
  world_.after(options_.stuck_after, [this, rank, life, since] {
    const sim_process* p = world_.find(life);
    if (!p || p->state != process_state::stopped || stopped_at_[life] != since)
      return; // it goes on, or was stopped again
    proto::member_stuck m;
    m.rank = rank;
    m.life = life;
    m.phase = "stopped";
    m.stuck_ms = static_cast<std::uint32_t>((world_.now() - since).count() / 1'000'000);
    m.reason = "state T";
    tell("/control/membership", parcel::of(m));
    look_at(rank, life, since);
  });
}

void sim_nodes::resume(rank_id rank) {
  world_.resume(life_of(rank));
}

} // namespace di::sim
