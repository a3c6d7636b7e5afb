// SPDX-License-Identifier: Apache-2.0
// SUPERVISOR: a node of the supervision tree. restart_core decides, a launcher starts and ends the
// children: actors of this process, or whole processes.
#pragma once

#include "actors/kit.hpp"
#include "actors/system.hpp"
#include "engine/core/restart_core.hpp"
#include "messaging/proto/supervisor.hpp"

#include <functional>

namespace di::actors {

/// One child of a supervisor.
struct child_spec {
  std::string kind;
  address path;
  std::vector<config_entry> config;
  engine::restart_rule restart;
  std::vector<std::string> listen; ///< facts to subscribe to; actors only
  bool detached = false;           ///< actors only
};

/// Starts and ends children of one sort. Implemented by local_launcher for actors and by
/// launch/process for processes. Must outlive the supervisors that use it.
class child_launcher {
public:
  using ended_fn = std::function<void(const error&)>;

  virtual ~child_launcher() = default;
  /// Starts one life. `ended` is called once when it is gone, on any thread; not if start() fails,
  /// nor for what ends because the whole process stops.
  virtual result<void> start(const child_spec& child, std::uint64_t life, ended_fn ended) = 0;
  /// Asks it to end; `ended` follows, by force if need be. Does not wait. An unknown life is
  /// ignored.
  virtual void stop(const child_spec& child, std::uint64_t life, const error& reason) = 0;
};

/// Children that are actors of this process; their kinds come from the registry.
class local_launcher final : public child_launcher {
public:
  local_launcher(system& host, const registry& types) : host_{&host}, types_{&types} {}
  result<void> start(const child_spec& child, std::uint64_t life, ended_fn ended) override;
  void stop(const child_spec& child, std::uint64_t life, const error& reason) override;

private:
  system* host_;
  const registry* types_;
};

struct supervisor_options {
  address self;
  std::vector<child_spec> children; ///< in order of starting
  child_launcher* launcher = nullptr;
  bus::post_office* office = nullptr;
  std::uint64_t seed = 1; ///< of the backoff's jitter
  bool publish = true;    ///< restarts and giving up go to TOPIC
};

/// Ends with ec::gave_up when a child's budget is used up, with ec::ok after stop_children; either
/// way its children are gone first. If it is killed, they are asked to end.
class supervisor_core {
public:
  explicit supervisor_core(supervisor_options options);
  ~supervisor_core();
  supervisor_core(const supervisor_core&) = delete;
  supervisor_core& operator=(const supervisor_core&) = delete;

  void start(instant now, outbox& out);
  void on(const proto::child_down& m, instant now, outbox& out);
  void on_due(timer which, instant now, outbox& out);
  result<proto::children> on(const proto::get_children& m) const;
  void on(const proto::kill_child& m, instant now, outbox& out);
  void on(const proto::stop_children& m, instant now, outbox& out);
  void check() const { core_.check(); }

private:
  void carry_out(const std::vector<engine::restart_action>& actions, outbox& out);
  void start_child(std::size_t i, std::uint64_t life, outbox& out);
  void settle(instant now, outbox& out);
  std::size_t index_of(const address& path) const;

  supervisor_options options_;
  engine::restart_core core_;
  std::vector<std::string> last_reasons_;
  bool stopping_ = false;
};

struct supervisor {
  static constexpr auto kind = "supervisor";
  using core = supervisor_core;
  using protocol =
      di::protocol<reacts_to<proto::child_down>,                           // a child has ended
                   replies_to<proto::get_children>::with<proto::children>, // who is here
                   reacts_to<proto::kill_child>,                           // end one, as a death
                   reacts_to<proto::stop_children>>;                       // end all for good
};

} // namespace di::actors
