// SPDX-License-Identifier: Apache-2.0
// Checks of whole topologies: sums, ports, paths, and what this build does not have.
#include "launch/topology_checks.hpp"

#include "engine/core/speculation_choice.hpp"
#include "engine/moe/rebalance_policy.hpp"
#include "launch/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <utility>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

void check_name(topology& t, const place& at, std::vector<problem>& problems) {
  if (t.name.empty())
    t.name = fs::path{t.file}.stem().string();
  const bool good = t.name.size() <= 63 && std::all_of(t.name.begin(), t.name.end(), [](char c) {
                      return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
                    });
  if (!good)
    problems.push_back({at, fmt::format("name {}: at most 63 letters, digits, - and _", t.name)});
}

void check_speculation(const topology& t, std::vector<problem>& problems) {
  if (const auto choice = engine::parse_speculation(t.speculation); !choice)
    problems.push_back(
        {t.speculation_at, fmt::format("roles.decode.speculation: {}", choice.error().what)});
}

void check_rebalance(const topology& t, std::vector<problem>& problems) {
  if (const auto policy = engine::parse_rebalance(t.rebalance); !policy)
    problems.push_back(
        {t.rebalance_at, fmt::format("roles.decode.rebalance: {}", policy.error().what)});
}

void check_nodes(topology& t, const place& nodes_at, std::vector<problem>& problems) {
  std::uint64_t ranks = 0;
  std::size_t hosts = 0;
  place sum_at = nodes_at; // of the ranks: the last override, else the list
  for (std::size_t i = 0; i < t.nodes.size(); ++i) {
    const auto& n = t.nodes[i];
    const auto key = [i](std::string_view name) {
      return fmt::format("cluster.nodes[{}].{}", i, name);
    };
    if (const auto at = t.blame({key("ranks"), key("host")}, n.at); at.set > sum_at.set)
      sum_at = at;
    const auto names = expand_hosts(n.hosts);
    if (!names.ok()) {
      problems.push_back(
          {t.blame({key("host")}, n.at), fmt::format("host: {}", names.error().what)});
      continue;
    }
    hosts += names->size();
    ranks += std::uint64_t{n.ranks} * names->size();
    if (names->size() > 1 && !n.address.empty())
      problems.push_back({t.blame({key("address"), key("host")}, n.at),
                          fmt::format("address: one address for {} hosts", names->size())});
  }
  if (ranks > 4096 || hosts > 1024)
    problems.push_back({sum_at, fmt::format("{} hosts with {} ranks; at most 1024 hosts and 4096 "
                                            "ranks",
                                            hosts, ranks)});
  if (t.ep == 0) {
    t.ep = static_cast<std::uint32_t>(std::min<std::uint64_t>(ranks, 4096));
    t.ep_at = nodes_at;
  } else if (problems.empty() && t.ep != ranks) {
    problems.push_back(
        {sum_at.set > t.ep_at.set ? sum_at : t.ep_at,
         fmt::format("roles.decode.ep is {}, but cluster.nodes has {} ranks", t.ep, ranks)});
  }
  if (problems.empty() && t.min_ep > t.ep)
    problems.push_back(
        {t.blame({"supervisor.min_ep", "roles.decode.ep"}, t.ep_at),
         fmt::format("supervisor.min_ep is {}, more than the {} ranks", t.min_ep, t.ep)});
  const std::uint64_t needed = 2 + 2 * ranks;
  if (hosts > 1 && t.port_base != 0 && t.port_base + needed - 1 > 65535)
    problems.push_back(
        {t.blame({"cluster.ports.base"}, sum_at),
         fmt::format("cluster.ports.base is {}: {} ports are needed, up to {}; ports end at 65535",
                     t.port_base, needed, t.port_base + needed - 1)});
  else if (hosts > 1 && t.port_base != 0 && needed > t.port_range)
    problems.push_back({t.blame({"cluster.ports.range"}, sum_at),
                        fmt::format("{} ports are needed from {} on, cluster.ports.range is {}",
                                    needed, t.port_base, t.port_range)});
}

void check_actors(const topology& t, std::vector<problem>& problems) {
  std::set<std::string> paths;
  for (std::size_t i = 0; i < t.actors.size(); ++i) {
    const auto& a = t.actors[i];
    const auto where = t.blame({fmt::format("actors[{}].at", i)}, a.where);
    if (a.at.empty())
      continue; // reported as missing
    const bool good =
        a.at.size() > 1 && a.at.size() <= 200 && a.at.front() == '/' && a.at.back() != '/'
        && a.at.find("//") == std::string::npos
        && std::all_of(a.at.begin(), a.at.end(), [](char c) {
             return std::isalnum(static_cast<unsigned char>(c)) || c == '/' || c == '_' || c == '-';
           });
    if (!good)
      problems.push_back({where, fmt::format("actor path {}: write e.g. /cluster/meter", a.at)});
    for (const std::string_view taken : {"/control", "/rank", "/node", "/gateway"})
      if (a.at == taken || a.at.starts_with(fmt::format("{}/", taken)))
        problems.push_back({where, fmt::format("actor path {}: {} belongs to the runtime; write "
                                               "e.g. /cluster/meter",
                                               a.at, taken)});
    if (!paths.insert(a.at).second)
      problems.push_back({where, fmt::format("actor path {} is given twice", a.at)});
  }
}

/// First and last port of the public listener.
std::pair<std::uint32_t, std::uint32_t> http_ports(const gateway_keys& g) {
  return {g.http_port, g.share_port ? g.http_port : g.http_port + g.replicas - 1};
}

void check_gateway(topology& t, const yaml_node& root, std::vector<problem>& problems) {
  auto& g = t.gateway;
  if (g.model_names.empty()) {
    auto folder = fs::path{t.model_path}.filename().string();
    if (folder.empty()) // a slash at the end
      folder = fs::path{t.model_path}.parent_path().filename().string();
    for (const auto& name : {folder, t.name})
      if (!name.empty() && (g.model_names.empty() || g.model_names.front() != name))
        g.model_names.push_back(name);
  }
  const auto add = [&](std::initializer_list<std::string> keys, std::string what) {
    problems.push_back({t.blame(keys, root.at), std::move(what)});
  };
  if (g.tls_cert.empty() != g.tls_key.empty())
    add({"gateway.tls.cert", "gateway.tls.key"},
        fmt::format("gateway.tls.{} is missing: TLS needs both",
                    g.tls_cert.empty() ? "cert" : "key"));
  if (g.http_port == 0)
    return;
  const auto [first, last] = http_ports(g);
  if (last > 65535)
    add({"cluster.ports.http", "roles.gateway.replicas", "gateway.share_port"},
        fmt::format("{} gateways need ports {} to {}; ports end at 65535", g.replicas, first,
                    last));
  if (g.admin_port >= first && g.admin_port <= last)
    add({"cluster.ports.admin", "cluster.ports.http"},
        fmt::format("cluster.ports.admin is {}, which cluster.ports.http takes", g.admin_port));
}

void check_rest(const topology& t, const yaml_node& root, std::vector<problem>& problems) {
  if (!t.batch_invariant)
    problems.push_back({t.blame({"determinism.batch_invariant"}, root.at),
                        "determinism.batch_invariant: false is refused: the CPU backend is always "
                        "batch invariant"});
  if (t.page_tokens != 128) // engine/model/kv_layout.hpp
    problems.push_back(
        {t.blame({"kv.page_tokens"}, root.at),
         fmt::format("kv.page_tokens: {} is not part of this build; write 128", t.page_tokens)});
  if (t.prefill_keep != 0 && t.prefill != proto::prefill_mode::compact)
    problems.push_back({t.blame({"roles.decode.prefill_keep"}, root.at),
                        fmt::format("roles.decode.prefill_keep is {}, but roles.decode.prefill is "
                                    "full; write prefill: compact",
                                    t.prefill_keep)});
  if (t.restart_backoff_max < t.restart_backoff)
    problems.push_back(
        {t.blame({"supervisor.restart.backoff_max", "supervisor.restart.backoff"}, root.at),
         fmt::format("supervisor.restart.backoff_max ({}) must not be less than backoff ({})",
                     format_time(t.restart_backoff_max), format_time(t.restart_backoff))});
  if (t.heartbeat_suspect <= t.heartbeat_every)
    problems.push_back(
        {t.blame({"supervisor.heartbeat.suspect", "supervisor.heartbeat.every"}, root.at),
         fmt::format("supervisor.heartbeat.suspect ({}) must be more than heartbeat.every ({})",
                     format_time(t.heartbeat_suspect), format_time(t.heartbeat_every))});
  if (t.lease_renew >= t.lease)
    problems.push_back({t.blame({"supervisor.lease_renew", "supervisor.lease"}, root.at),
                        fmt::format("supervisor.lease_renew ({}) must be less than lease ({})",
                                    format_time(t.lease_renew), format_time(t.lease))});
  if (t.prefill_rows > t.step_rows)
    problems.push_back({t.blame({"roles.decode.prefill_rows", "roles.decode.step_rows"}, root.at),
                        fmt::format("roles.decode.prefill_rows ({}) exceeds step_rows ({})",
                                    t.prefill_rows, t.step_rows)});
}

} // namespace

void check_topology(topology& t, const yaml_node& root, std::vector<problem>& problems) {
  const auto cluster = root.find("cluster");
  const auto name = root.find("name");
  check_name(t, name == yaml_node::npos ? root.at : root.items[name].at, problems);
  check_speculation(t, problems);
  check_rebalance(t, problems);
  check_nodes(t, cluster == yaml_node::npos ? root.at : root.keys[cluster].at, problems);
  check_actors(t, problems);
  check_gateway(t, root, problems);
  check_rest(t, root, problems);
}

} // namespace di::launch
