// SPDX-License-Identifier: Apache-2.0
// The actors of one process: spawn at a path, end one or all. Owns the CAF actor system.
#pragma once

#include "actors/core_driver.hpp"
#include "actors/registry.hpp"

namespace caf {
class actor_system;
}

namespace di::actors {

struct system_options {
  std::uint32_t threads = 2; ///< of the scheduler; detached actors have their own on top
  /// Sees all mail of all actors, on their threads. Empty: mail is logged at level debug.
  trace_fn trace;
  /// Prints bodies in the log; null: only their names.
  std::shared_ptr<const wire::codec_table> codecs;
  /// CAF's test coordinator in place of threads, and check() after every handler; see
  /// tests/support/deterministic_system.hpp
  bool testing = false;
};

struct spawn_options {
  bool detached = false;                   ///< a thread of its own: owners of devices
  std::uint64_t life = 1;                  ///< for actor_context
  progress_cell* progress = nullptr;       ///< told of every handler; outlives the actor
  std::vector<std::string> listen;         ///< names of facts to subscribe to at TOPIC
  std::function<void(const error&)> ended; ///< once, on any thread, after the path is free again
};

/// Thread-safe. The office must outlive it. Its destructor ends all actors.
class system {
public:
  system(system_options options, bus::post_office& office);
  ~system();
  system(const system&) = delete;
  system& operator=(const system&) = delete;

  /// Starts an actor around a ready core. @errors duplicate (path taken), not_found (nobody to
  /// listen at: TOPIC is missing), unavailable (after stop_all)
  result<void> spawn(const address& path, std::unique_ptr<core_handle> core,
                     spawn_options options = {});
  /// Starts an actor of a registered kind. @errors not_found, bad_config, duplicate, internal
  result<void> spawn(const registry& types, std::string_view kind, const address& path,
                     std::vector<config_entry> config, spawn_options options = {});
  /// Starts an actor of a type known here: `spawn<directory>("/control/directory", {}, options)`.
  template <actor_kind T, class... Args>
  result<void> spawn_as(const address& path, spawn_options options, Args&&... args) {
    return spawn(path, wrap_core<T>(std::forward<Args>(args)...), std::move(options));
  }

  /// Ends an actor once it has worked off its mail; an unknown path is ignored.
  void stop(const address& path, const error& reason = {ec::ok, "stopped"});
  /// Ends all, the youngest first, and waits; no actor can be spawned afterwards. @return false if
  /// some were left after `limit`
  bool stop_all(duration limit);
  /// Whether stop_all() was called: what ends from now on ends as it should.
  bool closing() const;
  std::vector<address> paths() const;

  metrics& counters() noexcept;
  bus::post_office& office() noexcept;
  /// For tests that drive the scheduler themselves.
  caf::actor_system& host() noexcept;

private:
  struct state;
  std::shared_ptr<state> state_;
};

} // namespace di::actors
