// SPDX-License-Identifier: Apache-2.0
// How many bytes a rank will hold. Formulas of the model's shapes plus a measured constant for the
// program itself; a test compares them with /proc/<pid>/smaps of a running rank.
#pragma once

#include "launch/plan.hpp"

#include <cstdint>
#include <vector>

namespace di::launch {

/// Stored bytes of a checkpoint by who needs them.
struct weight_sizes_table {
  std::uint64_t dense_bytes = 0;  ///< all backbone tensors but routed experts
  std::uint64_t expert_bytes = 0; ///< one routed expert of one backbone layer
};
weight_sizes_table weight_sizes(const engine::checkpoint& model);

/// Key/value room of one rank.
struct kv_room_table {
  std::uint64_t sequence_bytes = 0; ///< rings and tails of one sequence
  std::uint64_t page_bytes = 0;     ///< page_tokens of all source layers
  std::uint64_t least_bytes = 0;    ///< one sequence of full context
  std::uint64_t room_bytes = 0;     ///< what the topology grants, or max_sequences of full context
};
kv_room_table kv_room(const engine::model_spec& spec, const topology& t);

memory_plan estimate_memory(const weight_sizes_table& sizes, const engine::model_spec& spec,
                            const topology& t, const std::vector<planned_group>& groups,
                            std::uint32_t rank, std::uint32_t threads);

} // namespace di::launch
