// SPDX-License-Identifier: Apache-2.0
// The post office of a simulated process: the rules of messaging/bus (routes, lives, requests that
// bounce) over a simulated network. Actors cannot tell it from the real one.
#pragma once

#include "messaging/bus/post_office.hpp"

#include <map>
#include <optional>
#include <set>

namespace di::sim {

/// Mail between two processes.
struct sim_frame {
  incarnation sender{}, receiver{}; ///< lives
  address sender_prefix;            ///< of the sending process: how answers find back
  envelope mail;
};

/// Where offices give their mail to. Implemented by the world.
class sim_carrier {
public:
  virtual ~sim_carrier() = default;
  virtual void carry(sim_frame frame) = 0;                      ///< to another process
  virtual void deliver(incarnation process, envelope mail) = 0; ///< to an actor of the same
};

/// Owned by a simulated process, used on the simulator's thread.
class sim_office final : public bus::post_office {
public:
  sim_office(address prefix, incarnation life, sim_carrier& carrier)
      : prefix_{std::move(prefix)}, life_{life}, carrier_{&carrier} {}

  result<void> bind(const address& path, bus::deliver_fn deliver) override;
  void unbind(const address& path, const error& reason) override;
  result<void> add_route(const bus::peer& p) override;
  void remove_route(const address& prefix, const error& reason) override;
  std::vector<bus::peer> routes() const override;
  result<void> post(envelope mail) override;
  std::uint64_t number() override;
  result<void> watch(const address&, const address&) override { return {}; }
  void unwatch(const address&, const address&) override {}
  void set_view(epoch view) override { view_ = view; }
  bus::peer self() const override;
  bus::post_office_stats stats() const override { return stats_; }

  /// A frame has arrived. Frames for another life and of retired ones change nothing.
  void receive(sim_frame frame);
  /// The connection to a life broke: what was asked there bounces, and nothing more is sent there.
  void lost(incarnation life, const error& reason);
  bool retired(incarnation life) const { return retired_.contains(life); }

private:
  struct asked {
    address from, to, prefix; ///< prefix: of the route; empty: local
    incarnation life{};
  };
  struct owed {
    address to; ///< the actor that owes the answer
    incarnation life{};
  };
  struct hop {
    address prefix;
    incarnation life{};
  };

  std::optional<hop> find(const address& to) const;
  result<void> ship(const hop& to, envelope mail);
  result<void> post_answer(envelope mail);
  void answer_failure(incarnation life, const envelope& question, const error& why);
  void bounce(std::uint64_t number, const error& reason);
  template <class Pred>
  void bounce_all(Pred&& pred, const error& reason);

  address prefix_;
  incarnation life_;
  sim_carrier* carrier_;
  std::set<address> bound_;
  std::map<address, bus::peer> routes_;
  std::map<address, incarnation> learned_; ///< prefixes of processes that wrote first
  std::set<incarnation> retired_, lost_;
  std::map<std::uint64_t, asked> pending_;
  std::map<std::pair<address, std::uint64_t>, owed> inbound_; ///< requester and number
  std::uint64_t last_number_ = 0;
  epoch view_{};
  bus::post_office_stats stats_;
};

} // namespace di::sim
