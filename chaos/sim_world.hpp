// SPDX-License-Identifier: Apache-2.0
// Processes with actors on one thread: a virtual clock, a seeded order of events, a simulated
// network. Knows no actor type; chaos/sim_cluster.hpp puts the production cores into it.
#pragma once

#include "actors/core_driver.hpp"
#include "chaos/sim_network.hpp"
#include "chaos/sim_office.hpp"

#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

namespace di::sim {

struct sim_process;

/// One thing that happened to a mail, for invariants, hashes and charts.
enum class mail_event : std::uint8_t {
  sent,     ///< by an actor
  received, ///< by an actor, before its handler runs
  handled,  ///< its handler has run
  dropped,  ///< on the way, or by a process that is gone
};

/// Sees everything, changes nothing.
class sim_observer {
public:
  virtual ~sim_observer() = default;
  /// @param self  the actor that sent or got it
  virtual void on_mail(mail_event what, const sim_process& process, const address& self,
                       const envelope& mail) = 0;
  /// Something else happened to a process, in words.
  virtual void on_note(const sim_process&, const std::string&) {}
};

struct world_options {
  std::uint64_t seed = 1;
  duration delay_min = std::chrono::microseconds{20};   ///< of a link between processes
  duration delay_max = std::chrono::microseconds{200};  ///< likewise
  duration local_max = std::chrono::microseconds{3};    ///< between actors of one process
  duration compute_max = std::chrono::microseconds{80}; ///< of one turn of a device
  /// [0, 1] of dead lives whose frames reach the next life of the same process (a port used again)
  double reused_endpoints = 0.2;
  bool checked = true; ///< check() of a core after every handler
};

/// An actor of a simulated process.
struct sim_actor {
  std::unique_ptr<actors::core_driver> driver;
  instant woken_at{};                   ///< time of the pending wake; 0: none
  std::map<address, instant> last_from; ///< newest local mail per sender: they stay in order
};

enum class process_state : std::uint8_t { running, stopped, dead };

struct sim_process {
  address prefix;
  incarnation life{};
  process_state state = process_state::running;
  double slowness = 1; ///< delays of its mail are so many times longer
  bool reuses = false; ///< frames for it after its death reach the next life
  std::unique_ptr<sim_office> office;
  std::map<address, sim_actor> actors;
  std::vector<std::function<void()>> held; ///< what happened while it was stopped
};

class sim_world final : public sim_carrier {
public:
  explicit sim_world(world_options options);
  ~sim_world() override;

  instant now() const noexcept { return now_; }
  sim_network& network() noexcept { return network_; }
  const std::string& failure() const noexcept { return failure_; }
  /// The run has failed; the first words count.
  void fail_run(std::string words);
  std::uint64_t hash() const noexcept { return hash_; }
  std::uint64_t events() const noexcept { return handled_; }
  /// Tells observers what happens to a process.
  void note(const sim_process& p, const std::string& words);
  void observe(sim_observer* o) { observers_.push_back(o); } ///< outlives the world
  /// A process ended because one of its actors did; not called for kill().
  std::function<void(sim_process&, const address& actor, const error& why)> on_gave_up;

  /// Begins a life. @pre the life is new
  sim_process& add_process(address prefix, incarnation life);
  /// Adds an actor and starts its core now.
  void spawn(sim_process& p, const address& path, std::unique_ptr<core_handle> core);
  sim_process* find(incarnation life);
  /// The life of a prefix that is not dead; null: none.
  sim_process* living(const address& prefix);

  /// SIGKILL. Mail that it has sent stays on its way. Others notice the broken connections within
  /// `eof_after`.
  void kill(incarnation life, duration eof_after);
  void stop(incarnation life);   ///< SIGSTOP
  void resume(incarnation life); ///< SIGCONT
  /// Sends from outside to an actor of a process, certainly.
  void inject(sim_process& p, const address& to, parcel body, duration after = {});
  void at(instant when, std::function<void()> what);
  void after(duration d, std::function<void()> what) { at(now_ + d, std::move(what)); }

  /// Runs until `done`, a failure, or a bound. @return whether it was done
  bool run(const std::function<bool()>& done, std::uint64_t events_max, instant until);

  void carry(sim_frame frame) override;
  void deliver(incarnation process, envelope mail) override;

private:
  struct event {
    instant at;
    std::uint64_t order = 0;
    std::size_t what = 0; ///< index in bodies_
    bool operator<(const event& o) const { return at != o.at ? at > o.at : order > o.order; }
  };

  void arrive(const sim_frame& frame);
  void hand_over(incarnation life, const envelope& mail);
  void wake(incarnation life, const address& path);
  void after_call(sim_process& p, const address& path, const result<void>& outcome);
  void schedule_wake(sim_process& p, const address& path, sim_actor& a);
  void tell(mail_event what, const sim_process& p, const address& self, const envelope& mail);
  void mix(std::uint64_t v) noexcept;

  world_options options_;
  sim_random random_;
  sim_network network_;
  instant now_{1};
  std::priority_queue<event> queue_;
  std::vector<std::function<void()>> bodies_;
  std::vector<std::size_t> free_;
  std::map<incarnation, std::unique_ptr<sim_process>> processes_;
  std::map<address, incarnation> newest_; ///< life per prefix
  std::vector<sim_observer*> observers_;
  std::uint64_t order_ = 0, handled_ = 0, hash_ = 0xcbf2'9ce4'8422'2325U;
  std::string failure_;
};

} // namespace di::sim
