// SPDX-License-Identifier: Apache-2.0
// Placement of ranks on nodes and of experts on ranks, and the memory that follows.
#include "launch/plan.hpp"

#include "engine/core/speculation_choice.hpp"
#include "engine/moe/placement.hpp"
#include "launch/memory_model.hpp"
#include "launch/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>
#include <unistd.h>

namespace di::launch {
namespace {

bool is_here(const std::string& host, const machine& here) {
  return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == here.host_name;
}

std::vector<planned_group> groups_of(const engine::model_spec& spec, const topology& t) {
  std::vector<planned_group> groups;
  const auto add = [&](std::int64_t first, std::int64_t layers, std::int64_t experts) {
    if (layers == 0)
      return;
    const auto n = static_cast<std::uint32_t>(experts);
    groups.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(layers), n,
                      engine::slots_per_rank(n, t.redundant_experts, t.ep)});
  };
  add(0, spec.num_hidden_layers, spec.n_routed_experts);
  return groups;
}

/// Speculation and prefill against what the model has.
template <class Add>
void check_drafts(const topology& t, const engine::model_spec& spec, const Add& add) {
  const auto choice = engine::parse_speculation(t.speculation).value_or({});
  if (choice.mode != engine::speculation_mode::off && spec.draft_layers() == 0)
    add(t.speculation_at,
        fmt::format("roles.decode.speculation is {}, but the model has no draft layers; write off",
                    t.speculation));
  else if (choice.drafts > spec.dspark_block_size)
    add(t.speculation_at, fmt::format("roles.decode.speculation is {}, but the model makes {} "
                                      "drafts",
                                      t.speculation, spec.dspark_block_size));
  const std::int64_t keep_min = spec.sliding_window + 6; // and the rows of a verified block
  if (t.prefill_keep != 0 && t.prefill_keep < keep_min)
    add(t.blame({"roles.decode.prefill_keep"}, t.model_at),
        fmt::format("roles.decode.prefill_keep is {}, the model needs {} or more (a window of {} "
                    "and 6)",
                    t.prefill_keep, keep_min, spec.sliding_window));
}

} // namespace

machine this_machine() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return {name.data(), std::max(1U, std::thread::hardware_concurrency())};
}

result<engine::rebalance_policy> rebalance_of(const topology& t) {
  DI_TRY(engine::rebalance_policy policy, engine::parse_rebalance(t.rebalance));
  if (policy.mode != engine::rebalance_mode::forced) { // that has its own
    policy.window_steps = t.rebalance_window;
    policy.interval_steps = t.rebalance_interval;
    policy.bins = std::min(policy.bins, policy.window_steps);
  }
  policy.moves_max = t.rebalance_moves;
  return policy;
}

result<cluster_plan> place_ranks(const topology& t, const machine& here) {
  cluster_plan plan;
  std::string problems;
  std::vector<std::size_t> entry_of; // node -> index in t.nodes
  bool all_here = true;
  for (const auto& entry : t.nodes) {
    DI_TRY(const auto hosts, expand_hosts(entry.hosts));
    for (const auto& host : hosts) {
      planned_node n;
      n.node = static_cast<std::uint32_t>(plan.nodes.size());
      n.host = host;
      n.address = entry.address;
      n.cores = entry.cores != 0 ? entry.cores : is_here(host, here) ? here.cores : 0;
      n.first_rank = static_cast<std::uint32_t>(plan.ranks.size());
      n.ranks = entry.ranks;
      n.local = is_here(host, here);
      all_here = all_here && n.local;
      for (std::uint32_t r = 0; r < entry.ranks; ++r)
        plan.ranks.push_back({.rank = n.first_rank + r, .node = n.node, .memory = {}});
      plan.nodes.push_back(std::move(n));
      entry_of.push_back(static_cast<std::size_t>(&entry - t.nodes.data()));
    }
  }
  plan.tcp = plan.nodes.size() > 1;
  plan.launcher = t.launcher != launcher_kind::automatic ? t.launcher
                  : all_here                             ? launcher_kind::local
                                                         : launcher_kind::ssh;
  // Node 0 is this process, whatever its host is called.
  if (plan.launcher == launcher_kind::local)
    for (const auto& n : plan.nodes)
      if (!n.local)
        problems +=
            fmt::format("{}{}", problems.empty() ? "" : "\n",
                        located(t,
                                t.blame({fmt::format("cluster.nodes[{}].host", entry_of[n.node]),
                                         "cluster.launcher"},
                                        t.nodes[entry_of[n.node]].at),
                                fmt::format("launcher local cannot start on host {}: this "
                                            "is {}; use ssh or agent",
                                            n.host, here.host_name)));
  if (!problems.empty())
    return fail(error{ec::bad_config, problems});
  for (auto& n : plan.nodes) {
    if (n.address.empty())
      n.address = n.local && all_here ? "127.0.0.1" : n.local ? here.host_name : n.host;
    // Nodes of one machine share its cores.
    std::uint32_t on_host = 0;
    for (const auto& other : plan.nodes)
      on_host += other.host == n.host ? other.ranks : 0;
    for (std::uint32_t r = n.first_rank; r < n.first_rank + n.ranks; ++r)
      plan.ranks[r].threads = t.threads != 0 ? t.threads : std::max(1U, n.cores / on_host);
  }
  return plan;
}

result<cluster_plan> make_plan(const topology& t, const engine::checkpoint& model,
                               const machine& here) {
  DI_TRY(auto plan, place_ranks(t, here));
  const auto& spec = model.spec();
  std::string problems;
  const auto add = [&](const place& at, const std::string& what) {
    problems += fmt::format("{}{}", problems.empty() ? "" : "\n", located(t, at, what));
  };
  const auto experts = static_cast<std::uint64_t>(spec.n_routed_experts);
  const auto useful = experts * (t.ep - 1);
  if (t.redundant_experts > useful)
    add(t.redundant_at, fmt::format("roles.decode.redundant_experts is {}; {} ranks can hold at "
                                    "most {} copies of {} experts",
                                    t.redundant_experts, t.ep, useful, experts));
  const auto kv = kv_room(spec, t);
  if (t.kv_room_bytes != 0 && t.kv_room_bytes < kv.least_bytes)
    add(t.blame({"kv.room", "roles.decode.max_sequences"}, t.model_at),
        fmt::format("kv.room is {} bytes; {} bytes are needed: {} for each of {} sequences "
                    "(roles.decode.max_sequences) and {} for the pages of one full context ({} "
                    "positions)",
                    t.kv_room_bytes, kv.least_bytes, kv.sequence_bytes, t.max_sequences,
                    kv.least_bytes - kv.fixed_bytes, spec.max_position_embeddings));
  check_drafts(t, spec, add);
  if (!problems.empty())
    return fail(error{ec::bad_config, problems});
  plan.groups = groups_of(spec, t);
  const weight_map weights{model};
  for (auto& r : plan.ranks)
    r.memory = estimate_memory(weights, spec, t, plan.groups, r);
  return plan;
}

} // namespace di::launch
