// SPDX-License-Identifier: Apache-2.0
// The weights of one model as views that kernels understand, bound from checkpoint files. The
// mapped pages are used in place; only what kernels cannot use as stored is copied.
#pragma once

#include "engine/model/spec.hpp"
#include "kernels/kernels.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace di::engine {

class checkpoint;

/// Hyper-connection coefficients of one site.
struct mix_weights {
  const float* fn = nullptr;    ///< [mix_rows, streams * hidden]
  const float* scale = nullptr; ///< [3]
  const float* base = nullptr;  ///< [mix_rows]
};

struct attention_weights {
  const kernels::bf16* norm = nullptr;    ///< [hidden]
  const kernels::bf16* q_norm = nullptr;  ///< [q_lora_rank]
  const kernels::bf16* kv_norm = nullptr; ///< [head_dim]
  const float* sink = nullptr;            ///< [heads]
  kernels::weight wq_a, wq_b, wkv, wo_b;
  std::vector<kernels::weight> wo_a; ///< [o_groups] each [o_lora_rank, o_group_width]
};

/// Of KV source layers only.
struct compressor_weights {
  kernels::weight wkv;                 ///< [head_dim, hidden]
  kernels::weight wgate;               ///< [head_dim, hidden]; ratio 2 only, data null otherwise
  const kernels::bf16* norm = nullptr; ///< [head_dim]
};

/// Of index source layers only.
struct indexer_weights {
  kernels::weight wq_b;                  ///< [index heads * index_head_dim, q_lora_rank]
  kernels::weight weights_proj;          ///< [index heads, hidden]
  kernels::weight wk;                    ///< [index_head_dim, head_dim]; KV sources only
  const kernels::bf16* k_norm = nullptr; ///< [index_head_dim]; KV sources only
};

/// One SwiGLU network: a routed expert (fp4) or the shared one (fp8).
struct expert_weights {
  kernels::weight w1, w3; ///< [inner, hidden]
  kernels::weight w2;     ///< [hidden, inner]
};

struct moe_weights {
  const kernels::bf16* norm = nullptr; ///< [hidden]
  kernels::weight gate;                ///< [experts, hidden]
  const float* gate_bias = nullptr;    ///< [experts]
  expert_weights shared;
  std::vector<expert_weights> experts; ///< [experts]
};

/// Of Engram layers only.
struct engram_weights {
  const std::uint8_t* table = nullptr;       ///< [rows, engram_head_dim] e4m3
  const std::uint8_t* table_scale = nullptr; ///< [rows, engram_head_dim / 32] e8m0
  kernels::weight wkv;                       ///< [(streams + 1) * hidden, engram_width]
  const kernels::bf16* q_weight = nullptr;   ///< [streams, hidden]
  const kernels::bf16* k_weight = nullptr;   ///< [streams, hidden]
  std::vector<std::int64_t> row_offsets;     ///< [columns] first table row of each column
};

/// What the draft layers have beside their blocks.
struct draft_weights {
  kernels::weight main_proj;                   ///< [hidden, targets * hidden]
  const kernels::bf16* main_norm = nullptr;    ///< [hidden]
  const kernels::bf16* norm = nullptr;         ///< [hidden] before the head
  kernels::weight markov_head;                 ///< [vocab, rank]
  const kernels::bf16* markov_embed = nullptr; ///< [vocab, rank]
  kernels::weight confidence;                  ///< [1, hidden + rank]
};

struct layer_weights {
  mix_weights attention_mix, ffn_mix;
  attention_weights attention;
  moe_weights moe;
  std::unique_ptr<compressor_weights> compressor;
  std::unique_ptr<indexer_weights> indexer;
  std::unique_ptr<engram_weights> engram;
};

/// A model ready to run. Immutable after load(), so threads may share it. Keeps the mapped files
/// alive.
class loaded_model {
public:
  /// Opens the checkpoint folder and binds all weights but vision.
  /// @errors those of checkpoint::open()
  static result<std::unique_ptr<loaded_model>> load(const std::string& folder);
  loaded_model(const loaded_model&) = delete;
  loaded_model& operator=(const loaded_model&) = delete;
  ~loaded_model();

  const model_spec& spec() const noexcept { return spec_; }
  const checkpoint& files() const noexcept { return *files_; }
  /// [all layers] the backbone's, then the draft layers.
  std::span<const layer_weights> layers() const noexcept { return layers_; }
  /// Null without draft layers.
  const draft_weights* drafts() const noexcept { return drafts_.get(); }
  const kernels::bf16* embedding() const noexcept { return embedding_; } ///< [vocab, hidden]
  const kernels::bf16* norm() const noexcept { return norm_; }           ///< [hidden]
  const kernels::weight& head() const noexcept { return head_; }         ///< [vocab, hidden]
  /// Class of each token id for the Engram hash; empty without Engram. [vocab]
  std::span<const std::int32_t> engram_classes() const noexcept { return engram_classes_; }
  /// Rope frequencies: of layers without, and of layers with compressed KV. [rope_dim / 2]
  kernels::rope_table rope(std::int64_t layer) const noexcept;
  /// Bytes that had to be copied out of the mapped files.
  std::size_t copied_bytes() const noexcept { return copied_bytes_; }

private:
  friend class weight_binder;
  loaded_model();

  model_spec spec_;
  std::unique_ptr<checkpoint> files_;
  std::vector<layer_weights> layers_;
  std::unique_ptr<draft_weights> drafts_;
  const kernels::bf16* embedding_ = nullptr;
  const kernels::bf16* norm_ = nullptr;
  kernels::weight head_;
  std::span<const std::int32_t> engram_classes_;
  std::vector<float> window_freq_, compress_freq_;
  std::vector<std::unique_ptr<std::byte[]>> owned_; ///< copies of what could not be used in place
  std::size_t copied_bytes_ = 0;
};

/// Frequencies [dims / 2] of a rope kind, in fp32 steps as the reference takes them.
/// @source spec of the model, 2.1
std::vector<float> rope_frequencies(const rope_spec& rope);

} // namespace di::engine
