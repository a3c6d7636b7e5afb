// SPDX-License-Identifier: Apache-2.0
#include "engine/model/spec.hpp"

#include <algorithm>

namespace di::engine {
namespace {

bool contains(const std::vector<std::int64_t>& list, std::int64_t v) noexcept {
  return std::find(list.begin(), list.end(), v) != list.end();
}

std::optional<std::int64_t> last_at_or_before(const std::vector<std::int64_t>& ascending,
                                              std::int64_t layer) noexcept {
  const auto next = std::upper_bound(ascending.begin(), ascending.end(), layer);
  if (next == ascending.begin())
    return std::nullopt;
  return *(next - 1);
}

std::optional<std::size_t> position(const std::vector<std::int64_t>& list,
                                    std::int64_t v) noexcept {
  const auto it = std::find(list.begin(), list.end(), v);
  if (it == list.end())
    return std::nullopt;
  return static_cast<std::size_t>(it - list.begin());
}

} // namespace

std::string_view to_string(layer_kind kind) noexcept {
  switch (kind) {
  case layer_kind::window:
    return "window";
  case layer_kind::source:
    return "source";
  case layer_kind::reindex:
    return "reindex";
  case layer_kind::reuse:
    return "reuse";
  }
  return "unknown";
}

std::int64_t model_spec::ratio(std::int64_t layer) const noexcept {
  const auto i = static_cast<std::size_t>(layer);
  return layer >= 0 && i < compress_ratios.size() ? compress_ratios[i] : 0;
}

layer_kind model_spec::kind(std::int64_t layer) const noexcept {
  if (ratio(layer) == 0)
    return layer_kind::window;
  if (is_kv_source(layer))
    return layer_kind::source;
  return is_index_source(layer) ? layer_kind::reindex : layer_kind::reuse;
}

bool model_spec::is_kv_source(std::int64_t layer) const noexcept {
  return contains(kv_source_layer_ids, layer);
}

bool model_spec::is_index_source(std::int64_t layer) const noexcept {
  return contains(index_source_layer_ids, layer);
}

bool model_spec::uses_candidates(std::int64_t layer) const noexcept {
  return candidate_source_layer_id >= 0 && layer > candidate_source_layer_id
         && is_index_source(layer);
}

std::optional<std::int64_t> model_spec::kv_source_of(std::int64_t layer) const noexcept {
  if (ratio(layer) == 0)
    return std::nullopt;
  return last_at_or_before(kv_source_layer_ids, layer);
}

std::optional<std::int64_t> model_spec::index_source_of(std::int64_t layer) const noexcept {
  if (ratio(layer) == 0)
    return std::nullopt;
  return last_at_or_before(index_source_layer_ids, layer);
}

std::int64_t model_spec::last_kv_source() const noexcept {
  return kv_source_layer_ids.empty() ? -1 : kv_source_layer_ids.back();
}

std::optional<std::size_t> model_spec::engram_index(std::int64_t layer) const noexcept {
  return position(engram_layer_ids, layer);
}

std::optional<std::size_t> model_spec::tap_index(std::int64_t layer) const noexcept {
  if (draft_layers() == 0)
    return std::nullopt;
  return position(dspark_target_layer_ids, layer);
}

rope_spec model_spec::rope(std::int64_t layer) const noexcept {
  if (ratio(layer) == 0)
    return {rope_theta, qk_rope_head_dim, false, {}};
  const bool yarn = rope_scaling.original_max_position_embeddings > 0 && rope_scaling.factor != 1;
  return {compress_rope_theta, qk_rope_head_dim, yarn, rope_scaling};
}

std::int64_t model_spec::experts(std::int64_t layer) const noexcept {
  return is_draft(layer) ? dspark_n_routed_experts : n_routed_experts;
}

std::int64_t model_spec::experts_per_token(std::int64_t layer) const noexcept {
  return is_draft(layer) ? dspark_num_experts_per_tok : num_experts_per_tok;
}

} // namespace di::engine
