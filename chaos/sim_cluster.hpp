// SPDX-License-Identifier: Apache-2.0
// A whole cluster of production cores in a simulated world, with toy devices, a client and faults:
// one seed, one run.
#pragma once

#include "chaos/sim_disk.hpp"
#include "chaos/sim_fault.hpp"
#include "chaos/sim_invariants.hpp"
#include "chaos/sim_nodes.hpp"
#include "chaos/sim_streams.hpp"
#include "chaos/sim_toy_actors.hpp"
#include "chaos/sim_world.hpp"
#include "engine/core/gateway_core.hpp"
#include "engine/core/membership_core.hpp"
#include "engine/core/rebalancer_core.hpp"
#include "engine/core/scheduler_core.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace di::sim {

struct cluster_options {
  std::uint64_t seed = 1;
  std::uint32_t ranks = 4;
  std::vector<fault> faults;
  std::uint64_t events_max = 3'000'000;
};

/// What became of a run.
struct run_outcome {
  std::string failure; ///< empty: everything held
  std::uint64_t hash = 0, events = 0;
  double virtual_s = 0;
  std::uint64_t tokens = 0, views = 0, deaths = 0, joins = 0, frames = 0, lost = 0;
};

/// Settings of a cluster that a seed draws: sizes and depths of everything.
struct drawn_settings {
  std::uint32_t nodes = 1, experts = 5, redundant = 0;
  engine::rank_options rank; ///< without rank and life
  std::uint32_t slice_rows = 4;
  engine::rebalance_policy policy;
  std::uint32_t window = 4;
  duration compute_max{}; ///< of one turn of a device
  std::vector<proto::request_spec> requests;
  std::vector<proto::request_spec> streams; ///< of clients of the online gateway
  engine::on_loss loss = engine::on_loss::shrink;
  std::uint32_t members_min = 1; ///< supervisor.min_ep
};
drawn_settings draw_settings(std::uint64_t seed, std::uint32_t ranks);

class sim_cluster {
public:
  explicit sim_cluster(cluster_options options);

  /// Starts, breaks, heals, and demands that everything ends well.
  run_outcome run();
  sim_world& world() noexcept { return world_; }

private:
  /// Kills a process at a message.
  class crash_watch final : public sim_observer {
  public:
    explicit crash_watch(sim_cluster& owner) : owner_{owner} {}
    void on_mail(mail_event what, const sim_process& process, const address& self,
                 const envelope& mail) override;

  private:
    sim_cluster& owner_;
    std::map<wire_id, std::uint32_t> sent_, received_;
  };

  void start_control();
  void spawn_control_actors(sim_process& p, const std::optional<engine::journal_image>& before);
  void spawn_directory(sim_process& p, bool again);
  void spawn_keeper(sim_process& p);
  std::map<rank_id, incarnation> ranks_alive(); ///< whose processes run their actors
  void tell_of_control();
  void kill_control();
  void kill_rank(rank_id rank, const char* why);
  void start_gateway();
  void start_streams();
  void kill_streams();
  void begin_rank(rank_id rank, incarnation life);
  void announce(sim_process& p, const char* role, rank_id rank);
  bus::peer control_peer() const;
  void on_gave_up(sim_process& p, const address& actor, const error& why);
  void schedule_faults();
  void begin(const fault& f);
  void bend(const fault& f);
  void give_orders(rank_id rank, duration after);
  void heal();
  bool serving() const;
  bool settled();
  void check_answers();
  void check_quiet();
  std::string where_it_stands();
  run_outcome outcome() const;

  cluster_options options_;
  drawn_settings drawn_;
  sim_random random_;
  sim_world world_;
  sim_nodes nodes_;
  sim_disk disk_;
  std::map<std::pair<request_id, std::uint32_t>, std::vector<token_id>> reference_;
  sim_invariants invariants_;
  crash_watch crashes_;
  std::unique_ptr<engine::gateway_core> gateway_; ///< the client's side; no fault hits it
  sim_streams streams_;                           ///< clients of the online gateway
  std::map<incarnation, toy_rank_core*> ranks_;   ///< of lives whose process runs
  std::map<incarnation, epoch> views_;
  const engine::scheduler_core* scheduler_ = nullptr; ///< of the control process that runs
  std::uint64_t stale_states_ = 0, loads_ = 0;
  std::uint64_t control_lives_ = 0;
  instant ordered_until_{}; ///< an operator may still give orders
  bool armed_ = false;      ///< crashes count messages
};

} // namespace di::sim
