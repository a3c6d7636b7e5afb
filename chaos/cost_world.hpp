// SPDX-License-Identifier: Apache-2.0
// Cores on a virtual clock in which work takes time: hosts with processors, actors that compute one
// mail after the other, mail that costs its sender's and receiver's processors something. Nothing
// is lost here; sim_world is for faults.
#pragma once

#include "actors/core_handle.hpp"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

namespace di::chaos {

/// What simulated devices charge while a core handles a mail. Used on the simulation's thread.
class cost_meter {
public:
  void charge(double us) noexcept { us_ += us; }
  double take() noexcept { return std::exchange(us_, 0.0); }

private:
  double us_ = 0;
};

struct world_costs {
  double mail_us = 10;    ///< [us] of a receiver's processor for mail from another process
  double wake_us = 20;    ///< [us] more if no actor of the receiving process was at work
  double local_us = 1;    ///< [us] for mail within a process, and timers
  double latency_us = 20; ///< [us] between processes
};

/// A mail begins when its actor is free and a processor of its host is, in the order in which
/// actors became ready; what the core sends leaves when the mail's time is over.
class cost_world {
public:
  explicit cost_world(world_costs costs) : costs_{costs} {}

  /// @param cores  [processors] that its actors share
  /// @return number of the host
  std::size_t add_host(std::uint32_t cores);
  /// @param process_name  actors of one process reach each other without latency
  void add(std::size_t host, const std::string& process_name, const address& path,
           std::unique_ptr<core_handle> core);
  /// Sends from outside, now, for nothing.
  void inject(const address& to, parcel body);

  cost_meter& meter() noexcept { return meter_; }
  instant now() const noexcept { return now_; }
  std::uint64_t mails() const noexcept { return mails_; } ///< between processes
  /// Why an actor ended; empty if none did.
  const std::string& failure() const noexcept { return failure_; }
  /// Share of the host's processors that was busy. [0, 1]
  double busy_share(std::size_t host) const noexcept;

  /// Runs until `done` (asked after every mail), a failure, or a bound. @return whether it was done
  bool run(const std::function<bool()>& done, std::uint64_t mails_max);

private:
  struct job {
    parcel body; ///< empty: a timer
    address from;
    timer which;
    std::uint64_t generation = 0;
    bool remote = false, wakes = false;
  };
  struct process {
    std::uint32_t ready = 0; ///< actors that are
  };
  struct actor {
    address path;
    process* of = nullptr;
    std::size_t host = 0;
    std::unique_ptr<core_handle> core;
    std::deque<job> inbox;
    bool ready = false; ///< waits for a processor, or has one
    std::vector<any_effect> leaving;
    std::map<timer, std::uint64_t> timers;
  };
  struct machine {
    std::uint32_t cores = 1, busy = 0;
    std::deque<actor*> ready;
    double busy_us = 0;
  };
  struct event {
    std::int64_t at_ns = 0;
    std::uint64_t order = 0;
    actor* to = nullptr;
    bool finished = false; ///< its mail's time is over; otherwise `what` arrives
    std::shared_ptr<job> what;
    bool operator<(const event& o) const {
      return at_ns != o.at_ns ? at_ns > o.at_ns : order > o.order;
    }
  };

  void schedule(double after_us, actor& to, std::shared_ptr<job> what);
  void arrive(actor& a, job what);
  void dispatch(machine& h);
  void begin(machine& h, actor& a);
  void finish(actor& a);
  void settle(actor& a, std::vector<any_effect> effects);

  world_costs costs_;
  cost_meter meter_;
  instant now_{1};
  std::vector<machine> hosts_;
  std::map<std::string, process> processes_;
  std::unordered_map<address, std::unique_ptr<actor>> actors_;
  std::priority_queue<event> events_;
  std::uint64_t order_ = 0, generation_ = 0, mails_ = 0, handled_ = 0;
  std::string failure_;
};

} // namespace di::chaos
