// SPDX-License-Identifier: Apache-2.0
// Instantiation of the control actors, and the assembly of users' actors.
#include "actors/control.hpp"

#include "actors/chronicle.hpp"
#include "actors/directory.hpp"
#include "actors/keeper.hpp"
#include "actors/membership.hpp"
#include "actors/telemetry.hpp"
#include "actors/topic.hpp"

#include <algorithm>
#include <set>

namespace di::actors {

std::unique_ptr<core_handle> make_chronicle() {
  return wrap_core<chronicle>();
}

std::unique_ptr<core_handle> make_directory(engine::directory_options options,
                                            bus::post_office& office) {
  return wrap_core<directory>(std::move(options), office);
}

std::unique_ptr<core_handle> make_keeper(engine::keeper_options options) {
  return wrap_core<keeper>(std::move(options));
}

std::unique_ptr<core_handle> make_membership(engine::membership_options options) {
  return wrap_core<membership>(std::move(options));
}

std::unique_ptr<core_handle> make_node_proxy(node_id node, node_orders& orders) {
  return wrap_core<node_proxy>(node, orders);
}

std::unique_ptr<core_handle> make_registrar(registrar_options options) {
  return wrap_core<registrar>(std::move(options));
}

std::unique_ptr<core_handle> make_sampler(sampler_options options) {
  return wrap_core<sampler>(std::move(options));
}

std::unique_ptr<core_handle> make_supervisor(supervisor_options options) {
  return wrap_core<supervisor>(std::move(options));
}

std::unique_ptr<core_handle> make_telemetry() {
  return wrap_core<telemetry>();
}

std::unique_ptr<core_handle> make_topic() {
  return wrap_core<topic>();
}

result<void> check_user_actors(const registry& types, const std::vector<user_actor>& actors) {
  std::set<address> paths;
  std::set<std::string_view> facts;
  const auto codecs = types.codecs();
  for (const auto* codec : codecs->all())
    facts.insert(codec->name);
  for (const auto& a : actors) {
    const auto located = [&](ec code, const std::string& what) {
      return fail(code, "{}{}{}", a.where, a.where.empty() ? "" : ": ", what);
    };
    if (!paths.insert(a.at).second)
      return located(ec::duplicate, fmt::format("two actors at {}", a.at));
    const auto type = types.find(a.kind);
    if (!type)
      return located(type.error().code, type.error().what);
    const actor_context context{
        a.at, 1, actor_config{a.config, fmt::format("{} at {}", a.kind, a.at)}, nullptr};
    if (const auto made = type.value()->make(context); !made)
      return fail(made.error()); // located by its entries
    for (const auto& fact : a.listen)
      if (!facts.contains(fact))
        return located(ec::not_found, fmt::format("{} at {} listens to '{}', which no message is "
                                                  "called",
                                                  a.kind, a.at, fact));
  }
  return {};
}

result<void> start_user_actors(system& host, child_launcher& launcher, const address& prefix,
                               const std::vector<user_actor>& actors,
                               std::function<void(const error&)> gave_up) {
  for (std::size_t i = 0; i < actors.size(); ++i) {
    const auto& a = actors[i];
    supervisor_options options;
    options.self = fmt::format("{}/supervisors/{}", prefix, i);
    child_spec child;
    child.kind = a.kind;
    child.path = a.at;
    child.config = a.config;
    child.listen = a.listen;
    child.restart.restarts_max = a.restarts_max;
    child.restart.window = a.restart_window;
    options.children = {std::move(child)};
    options.launcher = &launcher;
    options.office = &host.office();
    options.seed = i + 1;
    spawn_options spawn;
    spawn.ended = [gave_up](const error& reason) {
      if (reason.code != ec::ok && gave_up)
        gave_up(reason);
    };
    const auto self = options.self;
    DI_TRY_VOID(host.spawn(self, make_supervisor(std::move(options)), std::move(spawn)));
  }
  return {};
}

} // namespace di::actors
