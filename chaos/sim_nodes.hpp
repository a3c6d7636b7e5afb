// SPDX-License-Identifier: Apache-2.0
// Node processes of the simulator: they start and kill rank processes, certify deaths and see
// hangs, as launch/ does with real ones.
#pragma once

#include "actors/kit.hpp"
#include "chaos/sim_world.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/node.hpp"

#include <functional>
#include <map>
#include <vector>

namespace di::sim {

struct nodes_options {
  std::uint32_t ranks = 0, nodes = 1;
  duration certify_max = std::chrono::milliseconds{4};   ///< death until its certificate
  duration reap_max = std::chrono::milliseconds{150};    ///< certificate until it is reaped
  duration stuck_after = std::chrono::milliseconds{300}; ///< stopped for so long: stuck
  duration load_max = std::chrono::milliseconds{400}; ///< start of a process until its actors run
  duration kill_max = std::chrono::milliseconds{40};  ///< kill_rank until the signal
};

/// All node processes. Facts for a control process that is gone wait for the next one.
class sim_nodes {
public:
  sim_nodes(sim_world& world, nodes_options options, sim_random random)
      : world_{world}, options_{options}, random_{random} {}

  /// Makes the process and its actors.
  std::function<void(rank_id rank, incarnation life)> begin_rank;

  node_id node_of(rank_id rank) const noexcept {
    return node_id{rank.v % std::max(options_.nodes, 1U)};
  }
  /// Starts a fresh life that comes to be after its loading. @return its life; none: one runs
  std::optional<incarnation> start(rank_id rank, bool at_once = false);
  /// SIGKILL from outside or from itself; the certificate and the rest follow.
  void killed(rank_id rank, std::string why);
  /// KEEPER's order.
  void kill(const proto::kill_rank& m);
  void stop(rank_id rank, duration lasting);
  void resume(rank_id rank);
  /// A control process runs: it gets what the one before has missed.
  void attach_control();
  /// Its actor at /node/<n> in the control process.
  std::unique_ptr<core_handle> make_proxy();

  incarnation life_of(rank_id rank) const;
  bool running(rank_id rank) const { return life_of(rank).v != 0; }
  std::uint64_t deaths() const noexcept { return deaths_; }
  /// Lives that were killed, stopped or ended themselves: they may leave the view.
  bool was_hurt(incarnation life) const { return hurt_.contains(life); }
  /// An operator ordered it out.
  void may_leave(rank_id rank) { ordered_.insert(rank); }
  bool may_leave(rank_id rank, incarnation life) const {
    return was_hurt(life) || ordered_.contains(rank);
  }
  std::vector<rank_id> ranks_of(node_id node) const;
  const std::map<rank_id, incarnation>& lives() const noexcept { return lives_; }

private:
  void tell(const address& to, parcel fact);
  void tell_exited(rank_id rank, incarnation life, const std::string& why);
  void look_at(rank_id rank, incarnation life, instant since);

  sim_world& world_;
  nodes_options options_;
  sim_random random_;
  std::map<rank_id, incarnation> lives_; ///< of processes that run or load
  std::set<incarnation> loading_, hurt_, dead_;
  std::map<incarnation, instant> stopped_at_; ///< the last time
  std::set<rank_id> ordered_;
  std::vector<std::pair<address, parcel>> missed_;
  std::uint64_t deaths_ = 0;
};

} // namespace di::sim
