// SPDX-License-Identifier: Apache-2.0
// The actors that hold a cluster together, ready for system::spawn(), so that the programs that
// assemble processes instantiate nothing.
#pragma once

#include "actors/node_proxy.hpp"
#include "actors/registrar.hpp"
#include "actors/supervisor.hpp"
#include "engine/core/directory_core.hpp"
#include "engine/core/keeper_core.hpp"
#include "engine/core/membership_core.hpp"

namespace di::actors {

struct sampler_options;

std::unique_ptr<core_handle> make_chronicle();
std::unique_ptr<core_handle> make_directory(engine::directory_options options,
                                            bus::post_office& office);
std::unique_ptr<core_handle> make_keeper(engine::keeper_options options);
std::unique_ptr<core_handle> make_membership(engine::membership_options options);
std::unique_ptr<core_handle> make_node_proxy(node_id node, node_orders& orders);
std::unique_ptr<core_handle> make_registrar(registrar_options options);
std::unique_ptr<core_handle> make_sampler(sampler_options options);
std::unique_ptr<core_handle> make_supervisor(supervisor_options options);
std::unique_ptr<core_handle> make_telemetry();
std::unique_ptr<core_handle> make_topic();

/// A line of a topology's `actors:`.
struct user_actor {
  std::string kind;
  address at;
  std::string where; ///< "file:line:column", for errors
  std::vector<config_entry> config;
  std::vector<std::string> listen;
  std::uint32_t restarts_max = 5;
  duration restart_window = std::chrono::seconds{60};
};

/// Checks users' actors before anything is started: kind known, config right, facts to listen to
/// known. Builds each core once and drops it. @errors not_found, bad_config, duplicate (paths)
result<void> check_user_actors(const registry& types, const std::vector<user_actor>& actors);

/// Starts users' actors, each under a supervisor of its own at <prefix>/supervisors/<number>: one
/// that gives up does not take the others along. TOPIC must run where they listen.
///
/// @param gave_up  told when one of them gives up; on any thread
result<void> start_user_actors(system& host, child_launcher& launcher, const address& prefix,
                               const std::vector<user_actor>& actors,
                               std::function<void(const error&)> gave_up);

} // namespace di::actors
