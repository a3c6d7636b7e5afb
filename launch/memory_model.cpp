// SPDX-License-Identifier: Apache-2.0
// Bytes of weights, key/value state and process.
#include "launch/memory_model.hpp"

#include "engine/model/tensor_table.hpp"

#include <algorithm>
#include <cstdio>

namespace di::launch {
namespace {

// Measured on Debian 12, x86-64, on the demo model at EP 1, 4 and 8; tests/e2e/memory_test.py
// compares.
/// Writable pages of program and libraries, heap and stacks of a rank that serves.
constexpr std::uint64_t program_bytes = 3840U << 10U;
constexpr std::uint64_t thread_bytes = 64U << 10U;
/// Sockets, buffers and book-keeping of one other process.
constexpr std::uint64_t peer_bytes = 220U << 10U;
/// Floats of index scores that the indexer holds at most (engine/model/index_selector.cpp).
constexpr std::uint64_t scores_max = 1ULL << 22U;
/// What Linux maps around a page fault in a file (fault_around_bytes).
constexpr std::uint64_t window_bytes = 64U << 10U;

/// "layers.3.ffn.experts.17.w1.weight" -> 3 and 17.
bool parse_expert_name(const std::string& name, std::uint32_t& layer, std::uint32_t& expert) {
  return std::sscanf(name.c_str(), "layers.%u.ffn.experts.%u.", &layer, &expert) == 2;
}

} // namespace

weight_map::weight_map(const engine::checkpoint& model) {
  const auto& spec = model.spec();
  for (const auto& e : engine::expected_tensors(spec)) {
    const auto* view = model.find(e.name);
    if (!view || e.role == engine::tensor_role::vision || e.unit > spec.num_hidden_layers)
      continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(view->data);
    const range r{begin, begin + view->bytes};
    expert_range x{0, 0, r};
    if (e.role == engine::tensor_role::routed_expert
        && parse_expert_name(e.name, x.layer, x.expert)) {
      experts_.push_back(x);
    } else {
      dense_bytes_ += view->bytes;
      dense_.push_back(r);
    }
  }
  add_hashed(model);
}

/// checkpoint::hash() looks into the middle of every tensor but experts other than number 0.
void weight_map::add_hashed(const engine::checkpoint& model) {
  for (const auto& t : model.tensors()) {
    const bool expert = t.name.find(".experts.") != std::string::npos;
    if (expert && t.name.find(".experts.0.") == std::string::npos)
      continue;
    const auto middle = reinterpret_cast<std::uintptr_t>(t.view.data) + t.view.bytes / 2;
    hashed_.push_back({middle, middle + 64});
  }
}

bool weight_map::held(const std::vector<planned_group>& groups, std::uint32_t rank,
                      const expert_range& e) const {
  for (const auto& g : groups)
    if (e.layer >= g.first_layer && e.layer < g.first_layer + g.layers) {
      // Slot s of rank r holds expert (r * slots + s) mod experts.
      const auto first = static_cast<std::uint32_t>(std::uint64_t{rank} * g.slots % g.experts);
      return (e.expert + g.experts - first) % g.experts < g.slots;
    }
  return false;
}

std::uint64_t weight_map::expert_bytes(const std::vector<planned_group>& groups,
                                       std::uint32_t rank) const {
  std::uint64_t sum = 0;
  for (const auto& e : experts_)
    if (held(groups, rank, e))
      sum += e.bytes.end - e.bytes.begin;
  return sum;
}

std::uint64_t weight_map::resident_bytes(const std::vector<planned_group>& groups,
                                         std::uint32_t rank) const {
  std::vector<range> touched = dense_;
  touched.insert(touched.end(), hashed_.begin(), hashed_.end());
  for (const auto& e : experts_)
    if (held(groups, rank, e))
      touched.push_back(e.bytes);
  for (auto& r : touched) {
    r.begin -= r.begin % window_bytes;
    r.end += (window_bytes - r.end % window_bytes) % window_bytes;
  }
  std::sort(touched.begin(), touched.end(),
            [](const range& a, const range& b) { return a.begin < b.begin; });
  std::uint64_t sum = 0, upto = 0;
  for (const auto& r : touched) {
    const auto begin = std::max(r.begin, upto);
    sum += r.end > begin ? r.end - begin : 0;
    upto = std::max(upto, r.end);
  }
  return sum;
}

kv_room_table kv_room(const engine::model_spec& spec, const topology& t) {
  const auto u = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  const std::int64_t verify_rows =
      std::max<std::int64_t>(8, spec.draft_layers() > 0 ? spec.dspark_block_size : 0);
  kv_room_table room;
  std::uint64_t tails = 0;
  for (const auto layer : spec.kv_source_layer_ids) {
    const std::int64_t entry =
        spec.head_dim / 2 + spec.head_dim / 16 + spec.index_head_dim / 2 + spec.index_head_dim / 32;
    room.page_bytes += u(t.page_tokens / spec.ratio(layer) * entry);
    if (spec.ratio(layer) == 2)
      tails += u(verify_rows * 2 * spec.head_dim * 4);
  }
  room.sequence_bytes = u(spec.all_layers() * (spec.sliding_window + verify_rows)
                          * (spec.head_dim + spec.head_dim / 32))
                        + tails;
  room.context_pages = u((spec.max_position_embeddings + t.page_tokens - 1) / t.page_tokens);
  room.fixed_bytes = room.sequence_bytes * t.max_sequences;
  const auto context_bytes = room.context_pages * room.page_bytes;
  room.least_bytes = room.fixed_bytes + context_bytes;
  room.room_bytes =
      t.kv_room_bytes != 0 ? t.kv_room_bytes : room.fixed_bytes + context_bytes * t.max_sequences;
  const auto pool_bytes =
      room.room_bytes > room.fixed_bytes ? room.room_bytes - room.fixed_bytes : 0;
  room.tokens = pool_bytes / std::max<std::uint64_t>(1, room.page_bytes) * t.page_tokens;
  return room;
}

memory_plan estimate_memory(const weight_map& weights, const engine::model_spec& spec,
                            const topology& t, const std::vector<planned_group>& groups,
                            const planned_rank& rank) {
  memory_plan m;
  m.dense_bytes = weights.dense_bytes();
  m.expert_bytes = weights.expert_bytes(groups, rank.rank);
  m.resident_bytes = weights.resident_bytes(groups, rank.rank);
  const auto kv = kv_room(spec, t);
  m.kv_bytes = kv.room_bytes + (t.kv_replicas > 0 ? t.kv_replica_room : 0);
  m.kv_tokens = kv.tokens;
  const auto row_bytes = static_cast<std::uint64_t>(
      4
      * (spec.stream_width() * 3 + spec.q_width() * 2
         + spec.num_experts_per_tok * (spec.hidden_size + 2 * spec.moe_intermediate_size)
         + spec.vocab_size));
  const auto scores =
      std::min(scores_max, t.step_rows * static_cast<std::uint64_t>(spec.max_position_embeddings));
  m.process_bytes = program_bytes + rank.threads * thread_bytes + t.ep * peer_bytes
                    + t.step_rows * row_bytes + scores * sizeof(float);
  return m;
}

} // namespace di::launch
