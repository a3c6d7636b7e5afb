// SPDX-License-Identifier: Apache-2.0
// How many bytes a rank will hold. Formulas of the model's shapes plus a measured constant for the
// program itself; a test compares them with /proc/<pid>/smaps of a running rank.
#pragma once

#include "launch/plan.hpp"

#include <cstdint>
#include <vector>

namespace di::launch {

/// Where the weights lie that ranks touch: address ranges of this process's mapping.
class weight_map {
public:
  explicit weight_map(const engine::checkpoint& model);

  /// [bytes] all backbone tensors but routed experts
  std::uint64_t dense_bytes() const noexcept { return dense_bytes_; }
  /// [bytes] of routed experts held by a rank with the contiguous placement
  std::uint64_t expert_bytes(const std::vector<planned_group>& groups, std::uint32_t rank) const;
  /// [bytes] that become resident when a rank touches its tensors: the kernel maps whole windows of
  /// 64 KiB around each fault, so neighbours of small experts come along.
  std::uint64_t resident_bytes(const std::vector<planned_group>& groups, std::uint32_t rank) const;

private:
  struct range {
    std::uint64_t begin = 0, end = 0;
  };
  struct expert_range {
    std::uint32_t layer = 0, expert = 0;
    range bytes;
  };
  void add_hashed(const engine::checkpoint& model);
  bool held(const std::vector<planned_group>& groups, std::uint32_t rank,
            const expert_range& e) const;

  std::uint64_t dense_bytes_ = 0;
  std::vector<range> dense_, hashed_;
  std::vector<expert_range> experts_;
};

/// Key/value room of one rank.
struct kv_room_table {
  std::uint64_t sequence_bytes = 0; ///< rings and tails of one sequence
  std::uint64_t page_bytes = 0;     ///< page_tokens of all source layers
  std::uint64_t fixed_bytes = 0;    ///< max_sequences * sequence_bytes: held whatever their length
  std::uint64_t context_pages = 0;  ///< pages of one sequence of full context
  std::uint64_t least_bytes = 0;    ///< fixed_bytes + context_pages * page_bytes
  std::uint64_t room_bytes = 0;     ///< what the topology grants, or max_sequences of full context
  std::uint64_t tokens = 0;         ///< of the pages that fit beside fixed_bytes: a rank's pool
};
kv_room_table kv_room(const engine::model_spec& spec, const topology& t);

memory_plan estimate_memory(const weight_map& weights, const engine::model_spec& spec,
                            const topology& t, const std::vector<planned_group>& groups,
                            const planned_rank& rank);

} // namespace di::launch
