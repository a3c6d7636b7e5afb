// SPDX-License-Identifier: Apache-2.0
// Bytes of weights, key/value state and process.
#include "launch/memory_model.hpp"

#include "engine/model/tensor_table.hpp"

#include <algorithm>

namespace di::launch {
namespace {

/// Program, libraries' writable pages, heap and stacks of a rank that has served requests on the
/// demo model; measured on Debian 12 (tests/e2e compares).
constexpr std::uint64_t program_bytes = 24U << 20U;
constexpr std::uint64_t thread_bytes = 256U << 10U;

} // namespace

weight_sizes_table weight_sizes(const engine::checkpoint& model) {
  const auto& spec = model.spec();
  weight_sizes_table sizes;
  for (const auto& e : engine::expected_tensors(spec)) {
    const auto* view = model.find(e.name);
    if (!view || e.role == engine::tensor_role::vision || e.unit > spec.num_hidden_layers)
      continue;
    (e.role == engine::tensor_role::routed_expert ? sizes.expert_bytes : sizes.dense_bytes) +=
        view->bytes;
  }
  const auto experts = static_cast<std::uint64_t>(spec.num_hidden_layers * spec.n_routed_experts);
  if (experts != 0)
    sizes.expert_bytes /= experts;
  return sizes;
}

kv_room_table kv_room(const engine::model_spec& spec, const topology& t) {
  const auto u = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  constexpr std::int64_t verify_rows = 8;
  kv_room_table room;
  std::uint64_t tails = 0;
  for (const auto layer : spec.kv_source_layer_ids) {
    const std::int64_t entry =
        spec.head_dim / 2 + spec.head_dim / 16 + spec.index_head_dim / 2 + spec.index_head_dim / 32;
    room.page_bytes += u(t.page_tokens / spec.ratio(layer) * entry);
    if (spec.ratio(layer) == 2)
      tails += u(verify_rows * 2 * spec.head_dim * 4);
  }
  room.sequence_bytes = u(spec.num_hidden_layers * (spec.sliding_window + verify_rows)
                          * (spec.head_dim + spec.head_dim / 32))
                        + tails;
  const auto pages = u((spec.max_position_embeddings + t.page_tokens - 1) / t.page_tokens);
  room.least_bytes = room.sequence_bytes + pages * room.page_bytes;
  room.room_bytes = t.kv_room_bytes != 0 ? t.kv_room_bytes : room.least_bytes * u(t.max_sequences);
  return room;
}

memory_plan estimate_memory(const weight_sizes_table& sizes, const engine::model_spec& spec,
                            const topology& t, const std::vector<planned_group>& groups,
                            std::uint32_t rank, std::uint32_t threads) {
  memory_plan m;
  m.dense_bytes = sizes.dense_bytes;
  for (const auto& g : groups) {
    const std::uint64_t used = std::min(g.slots, g.experts);
    m.expert_bytes += used * g.layers * sizes.expert_bytes;
  }
  (void)rank;
  m.kv_bytes = kv_room(spec, t).room_bytes;
  const auto row_bytes = static_cast<std::uint64_t>(
      4
          * (spec.stream_width() * 3 + spec.q_width() * 2
             + spec.num_experts_per_tok * (spec.hidden_size + 2 * spec.moe_intermediate_size))
      + 4 * spec.vocab_size);
  m.process_bytes = program_bytes + threads * thread_bytes + t.step_rows * row_bytes;
  return m;
}

} // namespace di::launch
