// SPDX-License-Identifier: Apache-2.0
// Carries faults out on the processes of one run: signals, rules for the gates of the buses
// (messaging/bus/fault_gate.hpp), load on the host, operators' commands. Undoes what it began.
#pragma once

#include "chaos/plan.hpp"
#include "chaos/process_table.hpp"
#include "launch/poll_loop.hpp"
#include "launch/process.hpp"
#include "messaging/bus/fault_gate.hpp"

#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace di::chaos {

/// The ranks of each node, for targets that name a node.
using node_ranks = std::vector<std::vector<std::uint32_t>>;

/// The trouble of a fault that met no process: with late_faults no defect.
inline constexpr const char* nobody_there = "no such process";

/// One fault as it happened.
struct injected {
  std::size_t number = 0; ///< in the plan, from 0
  fault_kind kind = fault_kind::kill;
  std::string what;                 ///< "kill rank 3"
  std::vector<std::uint32_t> ranks; ///< that it happened to
  bool control = false;             ///< it happened to the control process
  std::vector<pid_t> pids;
  std::int64_t begin_us = 0, end_us = 0; ///< [us] monotonic; end 0: not undone
  bool armed = false;  ///< it strikes by itself some time after begin_us, at a named point
  std::string trouble; ///< why nothing came of it
};

struct injector_options {
  std::string fault_folder; ///< DI_FAULTS of the run; exists
  std::string dilaunch;     ///< for commands
  node_ranks nodes;
  std::uint32_t ranks = 0;
  std::uint64_t seed = 1;
};

/// Used by one thread, whose loop it shares. Destruction ends load, thaws what is stopped.
class injector {
public:
  injector(launch::poll_loop& loop, injector_options options);
  ~injector();
  injector(const injector&) = delete;
  injector& operator=(const injector&) = delete;

  /// Does fault `number` now. @param in_step  the target shall be hit in the middle of a step
  void start(std::size_t number, const fault& f, bool in_step);
  const std::vector<injected>& done() const noexcept { return done_; }
  /// Thaws and heals everything, so that the run can end.
  void heal();

private:
  void signal_targets(const fault& f, int number, injected& record);
  void begin_slow(const fault& f, injected& record);
  void beat(std::uint64_t id, bool stopped);
  void add_links(const fault& f, std::size_t index);
  void add_point(const fault& f, std::size_t index, std::string point, int signal,
                 std::uint64_t times);
  void load_host(const fault& f, std::size_t index);
  void run_command(const fault& f, injected& record);
  void end_of_command(std::size_t index, int pidfd);
  void jump_clock(nanoseconds by);
  void finish(std::size_t index);
  void write_rules();
  std::vector<std::uint32_t> ranks_of(const fault_target& t);
  std::vector<std::string> prefixes_of(const fault_target& t, const std::vector<std::uint32_t>& r);
  std::vector<process_entry> processes_of(const fault_target& t,
                                          const std::vector<std::uint32_t>& ranks) const;

  struct slowness {
    std::vector<pid_t> pids;
    std::chrono::nanoseconds run{}, pause{};
    bool over = false;
  };

  launch::poll_loop& loop_;
  injector_options options_;
  std::mt19937_64 random_;
  std::vector<injected> done_;
  std::vector<fault> faults_; ///< as done_
  std::map<std::size_t, bus::fault_rules> rules_;
  std::map<std::uint64_t, slowness> slow_;
  std::map<std::size_t, std::vector<launch::child_process>> hogs_;
  std::map<std::size_t, std::pair<void*, std::size_t>> memory_;
  std::set<pid_t> stopped_;
};

std::int64_t monotonic_us();

} // namespace di::chaos
