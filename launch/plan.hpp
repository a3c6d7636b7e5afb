// SPDX-License-Identifier: Apache-2.0
// From a topology and a model to processes: who runs where, with which threads, experts, memory.
// Pure: nothing is started, nothing is written.
#pragma once

#include "engine/model/checkpoint.hpp"
#include "engine/moe/rebalance_policy.hpp"
#include "launch/topology.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace di::launch {

/// Layers with one number of experts, e.g. the backbone.
struct planned_group {
  std::uint32_t first_layer = 0, layers = 0, experts = 0;
  std::uint32_t slots = 0; ///< per rank
};

/// Estimated resident memory of a rank once it has served a while [bytes].
struct memory_plan {
  std::uint64_t dense_bytes = 0;    ///< mapped weights all ranks of a host share
  std::uint64_t expert_bytes = 0;   ///< mapped routed experts in its slots
  std::uint64_t resident_bytes = 0; ///< of both, with what the kernel maps around them
  std::uint64_t kv_bytes = 0;       ///< private: room for key/value state, when it is full
  std::uint64_t kv_tokens = 0;      ///< [tokens] that fit into kv_bytes beside fixed parts
  std::uint64_t process_bytes = 0;  ///< private: program, threads, buffers of a step
  std::uint64_t shared_bytes() const noexcept { return resident_bytes; }
  std::uint64_t private_bytes() const noexcept { return kv_bytes + process_bytes; }
};

struct planned_rank {
  std::uint32_t rank = 0, node = 0;
  std::uint32_t threads = 1;
  memory_plan memory;
};

struct planned_node {
  std::uint32_t node = 0;
  std::string host;
  std::string address; ///< how other nodes reach it
  std::uint32_t cores = 0;
  std::uint32_t first_rank = 0, ranks = 0;
  bool local = false; ///< started here, by fork
};

struct cluster_plan {
  std::vector<planned_node> nodes;
  std::vector<planned_rank> ranks;
  std::vector<planned_group> groups;
  launcher_kind launcher = launcher_kind::local; ///< of nodes that are not local
  bool tcp = false;                              ///< more than one node: tcp with CURVE keys
  std::uint32_t control_threads = 2;
};

/// What the plan needs to know of this machine.
struct machine {
  std::string host_name;
  std::uint32_t cores = 1;
};
machine this_machine();

/// What `roles.decode.rebalance*` says. @errors bad_config
result<engine::rebalance_policy> rebalance_of(const topology& t);

/// Nodes and ranks alone; needs no model. @errors bad_config
result<cluster_plan> place_ranks(const topology& t, const machine& here);

/// The whole plan. All contradictions between topology and model come in one error, located.
/// @errors bad_config
result<cluster_plan> make_plan(const topology& t, const engine::checkpoint& model,
                               const machine& here);

/// For people: a table. For programs: one JSON object.
std::string plan_table(const topology& t, const cluster_plan& plan);
std::string plan_json(const topology& t, const cluster_plan& plan);

} // namespace di::launch
