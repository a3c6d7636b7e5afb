// SPDX-License-Identifier: Apache-2.0
// The model's configuration as read from config.json, checked, with everything that follows from
// it.
#pragma once

#include "engine/model/engram_constants.hpp"
#include "messaging/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// YaRN parameters; they apply with `compress_rope_theta` only and not at all if `factor` is 1 or
/// `original_max_position_embeddings` is 0.
struct rope_scaling_spec {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  std::int64_t original_max_position_embeddings = 0; ///< [positions]
};

/// Rotation of one layer: f_i = theta^(-2i/dims), YaRN-scaled if `yarn`. Adjacent pairs rotate.
struct rope_spec {
  double theta = 0;
  std::int64_t dims = 0; ///< the last `dims` of a head rotate; even
  bool yarn = false;
  rope_scaling_spec scaling; ///< meaningful if `yarn`
};

/// `vision_config`. `num_hidden_layers` 0 means a text-only model.
struct vision_spec {
  std::int64_t num_hidden_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t patch_size = 14;
  std::int64_t downsample_ratio = 3;
  std::int64_t max_image_tokens = 1024;
  std::int64_t min_pixels = 295936;
  double rope_theta = 10000;
  double max_wh_ratio = 0; ///< 0: no bound (null in the file)
};

/// What a backbone layer does besides window attention and MoE.
enum class layer_kind : std::uint8_t {
  window,  ///< ratio 0: window only
  source,  ///< owns a compressor and an indexer with keys of its own
  reindex, ///< own indexer over the keys of an earlier source
  reuse,   ///< KV and selection of earlier layers
};

std::string_view to_string(layer_kind kind) noexcept;

/// One model. Names are those of the Hugging Face file. A value of this type obeys every rule of
/// the architecture if it came from parse_model_spec(). Plain data: copy and share freely.
///
/// Layers are numbered [0, num_hidden_layers); draft layer m counts as num_hidden_layers + m.
struct model_spec {
  // --- top level
  std::int32_t bos_token_id = 0;
  std::int32_t eos_token_id = 1;
  std::int32_t pad_token_id = 2;
  std::int32_t image_token_id = -1; ///< -1: none

  // --- sizes
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t q_lora_rank = 0;
  std::int64_t o_groups = 0;
  std::int64_t o_lora_rank = 0;
  std::int64_t max_position_embeddings = 0; ///< [positions] the context
  std::int64_t sliding_window = 0;          ///< [positions] the query itself counted in
  double rms_norm_eps = 1e-20;

  // --- rope
  double rope_theta = 10000;           ///< layers of ratio 0 and draft layers; never scaled
  double compress_rope_theta = 160000; ///< layers of ratio > 0
  rope_scaling_spec rope_scaling;

  // --- schedule
  std::vector<std::int64_t> compress_ratios;     ///< [backbone + draft layers]; 0, 1 or 2; drafts 0
  std::vector<std::int64_t> kv_source_layer_ids; ///< ascending
  std::vector<std::int64_t> index_source_layer_ids; ///< ascending; contains the KV sources
  std::int64_t candidate_source_layer_id = -1;      ///< negative: no candidate level
  std::int64_t candidate_topk_blocks = 0;
  std::int64_t candidate_block_size = 0; ///< [entries]
  std::int64_t index_n_heads = 0;
  std::int64_t index_head_dim = 0;
  std::int64_t index_topk = 0; ///< [entries]

  // --- MoE
  std::int64_t n_routed_experts = 0;
  std::int64_t n_shared_experts = 1;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;
  double routed_scaling_factor = 1.5;
  double gate_temp = 1;
  double swiglu_limit = 10;

  // --- hyper-connections
  std::int64_t hc_mult = 4; ///< residual streams
  std::int64_t hc_sinkhorn_iters = 20;
  double hc_eps = 1e-6;

  // --- Engram; no Engram if `engram_layer_ids` is empty
  std::vector<std::int64_t> engram_layer_ids;
  std::vector<std::int64_t> engram_num_embeddings; ///< [engram layers] table rows
  std::int64_t engram_max_ngram_size = 0;
  std::int64_t engram_n_heads = 0;
  std::int64_t engram_head_dim = 0;
  std::int64_t engram_vocab_size = 0;
  std::int64_t engram_pad_token_id = 2;
  std::int64_t engram_compressed_vocab_size = 0;
  engram_constants engram; ///< computed here; the row sums were checked against the file

  // --- drafts; none if num_nextn_predict_layers or dspark_block_size is 0
  std::int64_t num_nextn_predict_layers = 0;
  std::int64_t dspark_block_size = 0;
  std::int64_t dspark_noise_token_id = -1;
  std::vector<std::int64_t> dspark_target_layer_ids; ///< tap layers, in the order of main_proj
  std::int64_t dspark_markov_rank = 0;
  std::int64_t dspark_n_routed_experts = 0;
  std::int64_t dspark_num_experts_per_tok = 0;

  vision_spec vision;

  /// Keys of the file that this program does not know. Not an error; `checkpoint check` lists them.
  std::vector<std::string> unknown_keys;

  // --- what follows. `layer` is a backbone or draft layer unless said otherwise.
  std::int64_t draft_layers() const noexcept {
    return dspark_block_size > 0 ? num_nextn_predict_layers : 0;
  }
  std::int64_t all_layers() const noexcept { return num_hidden_layers + draft_layers(); }
  bool is_draft(std::int64_t layer) const noexcept { return layer >= num_hidden_layers; }
  bool has_vision() const noexcept { return vision.num_hidden_layers > 0; }

  std::int64_t ratio(std::int64_t layer) const noexcept;
  layer_kind kind(std::int64_t layer) const noexcept;
  bool is_kv_source(std::int64_t layer) const noexcept;
  bool is_index_source(std::int64_t layer) const noexcept;
  bool is_candidate_source(std::int64_t layer) const noexcept {
    return candidate_source_layer_id >= 0 && layer == candidate_source_layer_id;
  }
  /// Its indexer looks only at the candidate blocks of the candidate source.
  bool uses_candidates(std::int64_t layer) const noexcept;
  /// The layer whose compressed entries it reads; none if ratio(layer) == 0.
  std::optional<std::int64_t> kv_source_of(std::int64_t layer) const noexcept;
  /// The layer whose selection it reads; none if ratio(layer) == 0.
  std::optional<std::int64_t> index_source_of(std::int64_t layer) const noexcept;
  /// Last backbone layer that writes compressed KV; -1 if none: the encoder ends there.
  std::int64_t last_kv_source() const noexcept;
  /// Position in `engram_layer_ids`; none if the layer has no Engram.
  std::optional<std::size_t> engram_index(std::int64_t layer) const noexcept;
  /// Position in `dspark_target_layer_ids`; none if no draft layer taps it (or there are no
  /// drafts).
  std::optional<std::size_t> tap_index(std::int64_t layer) const noexcept;
  /// Elements of a row's taps: [targets, hidden].
  std::int64_t taps_width() const noexcept {
    return static_cast<std::int64_t>(dspark_target_layer_ids.size()) * hidden_size;
  }

  rope_spec rope(std::int64_t layer) const noexcept;
  std::int64_t experts(std::int64_t layer) const noexcept;
  std::int64_t experts_per_token(std::int64_t layer) const noexcept;

  std::int64_t q_width() const noexcept { return num_attention_heads * head_dim; }
  std::int64_t o_group_width() const noexcept { return q_width() / o_groups; } ///< inputs of wo_a
  std::int64_t o_width() const noexcept { return o_groups * o_lora_rank; }     ///< inputs of wo_b
  std::int64_t index_q_width() const noexcept { return index_n_heads * index_head_dim; }
  std::int64_t stream_width() const noexcept { return hc_mult * hidden_size; }
  std::int64_t mix_rows() const noexcept { return (2 + hc_mult) * hc_mult; } ///< rows of hc_*_fn
  std::int64_t engram_columns() const noexcept {
    return engram_layer_ids.empty() ? 0 : (engram_max_ngram_size - 1) * engram_n_heads;
  }
  std::int64_t engram_width() const noexcept { return engram_columns() * engram_head_dim; }
};

/// Reads config.json: either the Hugging Face layout (text_config, vision_config,
/// quantization_config) or the flat one (dim, n_layers, ...). All defects are reported in one
/// error, one line each.
///
/// @param text  the file's bytes, untrusted
/// @param file  named in errors
/// @errors      ec::bad_format (no JSON), ec::duplicate (a key twice), ec::bad_config (missing key,
///              wrong type, broken rule), ec::limit_exceeded
/// @source      spec of the model, section 1
result<model_spec> parse_model_spec(std::string_view text, std::string_view file = "config.json");

} // namespace di::engine
