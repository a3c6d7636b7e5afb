// SPDX-License-Identifier: Apache-2.0
// The state of one run, for cluster*.cpp only: who runs, in which life, and what is owed to whom.
#pragma once

#include "launch/admin_server.hpp"
#include "launch/agent_host.hpp"
#include "launch/cluster.hpp"
#include "launch/cluster_log.hpp"
#include "launch/endpoints.hpp"
#include "launch/heartbeat_core.hpp"
#include "launch/node_link.hpp"
#include "launch/output_lines.hpp"
#include "launch/rank_host.hpp"
#include "launch/remote.hpp"
#include "launch/run_dir.hpp"

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace di::launch {

/// One rank through all its lives.
struct rank_lives {
  process_identity id;  ///< of the life that runs, or ran last
  bool running = false; ///< started and not reaped
  bool ready = false;   ///< it has joined once
  bool lost = false;    ///< certified dead
  std::uint32_t started = 0;
};

/// One gateway through all its lives.
struct gateway_lives {
  process_identity id;
  bool running = false;
  bool serving = false; ///< this life said that it answers requests
  bool drained = false; ///< this life was told to end, and said that nobody waits any more
  std::uint32_t started = 0;
  std::uint32_t useless = 0;                       ///< lives in a row that ended before they served
  std::deque<poll_loop::clock::time_point> deaths; ///< within the budget's span
};

/// What goes on between first process and last. One thread, one loop.
///
/// Before all processes are ready once, any death ends the run with its reason. Afterwards a death
/// of a rank or of a node is a fact for the control process, and the run goes on until that says it
/// is over; a control process that is killed starts again within its budget.
class cluster {
public:
  cluster(cluster_options options, run_dir dir, run_identities ids, cluster_log& log);
  int run();

private:
  // cluster.cpp: the run as a whole
  void serve();
  void on_status(const std::string& child, const std::string& json);
  void on_lost(const std::string& child, const std::string& how);
  void on_exit(const std::string& child, exit_state state, const std::string& words);
  void death_at_start(exit_state state, const std::string& reason);
  void on_signal(int number);
  void end(int code, std::string reason);
  void order_all(int number);
  void stop_if_empty();
  void late();

  // cluster_control.cpp: the control process, in all its lives
  void start_control();
  void child_stopped(const std::string& child, std::uint32_t stuck_ms);
  std::chrono::milliseconds stopped_max() const;
  void on_control_exit(exit_state state, const std::string& reason);
  void restart_control(const std::string& reason);
  void control_bound(const bus::peer& self);
  void tell_control(const node_word& word);
  void on_word(const child_word& word);
  recovering_boot recovering() const;

  // cluster_control.cpp: operators
  void open_admin();
  void on_admin(std::uint64_t connection, const std::string& line);
  void refuse_admins(const std::string& why);

  // cluster_gateways.cpp: gateway processes, and the ways of `dilaunch up`
  void start_gateways();
  result<void> start_gateway(std::uint32_t gateway);
  std::optional<std::uint32_t> gateway_of(const std::string& child) const;
  void tell_gateways(const node_word& word);
  void tell_progress();
  void gateway_serves(std::uint32_t gateway);
  void gateway_exited(std::uint32_t gateway, exit_state state, const std::string& reason);
  void restart_gateway(std::uint32_t gateway, const std::string& reason);
  void start_gateway_again(std::uint32_t gateway);
  void drain_gateways(const std::string& why);
  void end_drained();
  void reload();
  bool on_own_order(std::uint64_t connection, const std::string& line);
  std::string state_line() const;

  // cluster_ranks.cpp: ranks in all their lives
  child_events local_events();
  void start_ranks();
  result<void> start_rank(std::uint32_t rank);
  void start_again(const child_word& order);
  void kill_rank(const child_word& order);
  result<void> fresh_life(std::uint32_t rank);
  boot_config boot_for(process_role role, std::uint32_t index, const process_identity& id) const;
  void rank_lost(std::uint32_t rank, const std::string& how);
  void rank_exited(std::uint32_t rank, exit_state state, const std::string& words);
  void rank_stuck(std::uint32_t rank, const std::string& phase, std::uint32_t stuck_ms,
                  const std::string& what);
  node_word about(node_word_kind kind, std::uint32_t rank) const;
  std::optional<std::uint32_t> rank_of(const std::string& child) const;

  // cluster_nodes.cpp: node processes elsewhere
  remote_events far_events();
  void start_nodes();
  result<void> start_node(const planned_node& n);
  void start_node_again(std::uint32_t node);
  void await_agents();
  void beat();
  void take_cores(std::uint32_t node, std::uint32_t cores);
  void on_report(std::uint32_t node, const node_report& r);
  void on_node_lost(std::uint32_t node, const std::string& words);

  cluster_options o_;
  run_dir dir_;
  run_identities ids_;
  cluster_log& log_;
  poll_loop loop_;
  rank_host host_;
  child_set& children_;
  std::unique_ptr<admin_server> admin_;
  std::set<std::uint64_t> admin_waiting_; ///< connections that control owes an answer
  std::unique_ptr<agent_host> agents_;
  std::map<std::uint32_t, std::unique_ptr<remote_node>> remotes_;
  std::set<std::uint32_t> greeted_;                 ///< node processes that are there
  std::vector<std::unique_ptr<remote_node>> going_; ///< of lost nodes, until the loop comes round
  heartbeat_core beats_;
  bool beating_ = false;
  std::map<std::uint32_t, std::deque<poll_loop::clock::time_point>> node_deaths_;
  std::vector<rank_lives> ranks_;
  std::vector<gateway_lives> gateways_; ///< empty: there is a batch
  bool announced_ = false;              ///< the user was told where to connect
  bool gateways_started_ = false;
  std::set<std::string> not_ready_;         ///< of the first lives
  std::map<std::string, std::string> said_; ///< why a child said it ends
  std::optional<bus::peer> control_;
  std::optional<output_lines> output_; ///< if the batch has no output file
  std::uint32_t control_lives_ = 0;
  std::deque<poll_loop::clock::time_point> control_deaths_;
  bool ranks_started_ = false;
  bool formed_ = false; ///< all processes were ready once

  bool ending_ = false, draining_ = false, cause_certain_ = false;
  int code_ = exit_done;
  std::string reason_;
  std::string first_cause_;
  std::string unanswered_; ///< how many prompts, as control said
};

std::string rank_name(std::uint32_t rank);
std::string gateway_name(std::uint32_t gateway);

} // namespace di::launch
