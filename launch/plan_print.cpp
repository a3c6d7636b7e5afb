// SPDX-License-Identifier: Apache-2.0
// Plans as a table and as JSON.
#include "launch/plan.hpp"
#include "launch/units.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace di::launch {

std::string plan_table(const topology& t, const cluster_plan& plan) {
  std::string out = fmt::format(
      "{}: {} rank{} on {} node{}, {} between processes{}\n", t.name, plan.ranks.size(),
      plan.ranks.size() == 1 ? "" : "s", plan.nodes.size(), plan.nodes.size() == 1 ? "" : "s",
      plan.tcp ? "tcp with CURVE" : "ipc",
      plan.tcp ? fmt::format(", launcher {}", to_string(plan.launcher)) : std::string{});
  for (const auto& g : plan.groups)
    out += fmt::format("layers {}..{}: {} experts, {} slots on each rank\n", g.first_layer,
                       g.first_layer + g.layers - 1, g.experts, g.slots);
  out += fmt::format("dilaunch up: {} gateway{} at {}:{}{}, operators at 127.0.0.1:{}\n",
                     t.gateway.replicas, t.gateway.replicas == 1 ? "" : "s", t.gateway.bind,
                     t.gateway.http_port,
                     t.gateway.share_port || t.gateway.replicas == 1
                         ? std::string{}
                         : fmt::format(" to {}", t.gateway.http_port + t.gateway.replicas - 1),
                     t.gateway.admin_port);
  out += fmt::format("\n{:>4} {:>5} {:<16} {:>7} {:>12} {:>12} {:>12}\n", "rank", "node", "host",
                     "threads", "shared", "private", "of it kv");
  const auto row = [&](const planned_rank& r) {
    return fmt::format("{:>5} {:<16} {:>7} {:>12} {:>12} {:>12}\n", r.node, plan.nodes[r.node].host,
                       r.threads, pretty_size(r.memory.shared_bytes()),
                       pretty_size(r.memory.private_bytes()), pretty_size(r.memory.kv_bytes));
  };
  for (const auto& r : plan.ranks)
    out += fmt::format("{:>4} ", r.rank) + row(r);
  out += '\n';
  for (const auto& n : plan.nodes) {
    std::uint64_t shared = 0, own = 0;
    for (const auto& r : plan.ranks)
      if (r.node == n.node) {
        shared = std::max(shared, r.memory.dense_bytes) + r.memory.expert_bytes;
        own += r.memory.private_bytes();
      }
    out += fmt::format("node {} {} ({}): {} process{}, weights mapped at most {}, private {}\n",
                       n.node, n.host, n.address, n.ranks + (n.node == 0 ? 2U : 1U), "es",
                       pretty_size(shared), pretty_size(own));
  }
  return out;
}

std::string plan_json(const topology& t, const cluster_plan& plan) {
  using nlohmann::json;
  json j{{"name", t.name},
         {"model", t.model_path},
         {"transport", plan.tcp ? "tcp" : "ipc"},
         {"launcher", std::string{to_string(plan.launcher)}},
         {"nodes", json::array()},
         {"ranks", json::array()},
         {"experts", json::array()}};
  for (const auto& n : plan.nodes)
    j["nodes"].push_back({{"node", n.node},
                          {"host", n.host},
                          {"address", n.address},
                          {"cores", n.cores},
                          {"first_rank", n.first_rank},
                          {"ranks", n.ranks}});
  j["gateways"] = {{"replicas", t.gateway.replicas}, {"bind", t.gateway.bind},
                   {"http", t.gateway.http_port},    {"share_port", t.gateway.share_port},
                   {"admin", t.gateway.admin_port},  {"tls", t.gateway.tls()}};
  for (const auto& g : plan.groups)
    j["experts"].push_back({{"first_layer", g.first_layer},
                            {"layers", g.layers},
                            {"experts", g.experts},
                            {"slots_per_rank", g.slots}});
  for (const auto& r : plan.ranks)
    j["ranks"].push_back({{"rank", r.rank},
                          {"node", r.node},
                          {"threads", r.threads},
                          {"dense_bytes", r.memory.dense_bytes},
                          {"expert_bytes", r.memory.expert_bytes},
                          {"shared_bytes", r.memory.shared_bytes()},
                          {"kv_bytes", r.memory.kv_bytes},
                          {"kv_tokens", r.memory.kv_tokens},
                          {"process_bytes", r.memory.process_bytes},
                          {"private_bytes", r.memory.private_bytes()}});
  return j.dump(2) + "\n";
}

} // namespace di::launch
