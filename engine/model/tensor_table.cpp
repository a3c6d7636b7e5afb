// SPDX-License-Identifier: Apache-2.0
#include "engine/model/tensor_table.hpp"

#include "messaging/base/result.hpp"

namespace di::engine {
namespace {

constexpr std::int64_t blocks(std::int64_t n) {
  return (n + 31) / 32;
}

class table_builder {
public:
  explicit table_builder(const model_spec& s) : s_{s} {}

  std::vector<expected_tensor> build() {
    bf16("embed.weight", {s_.vocab_size, s_.hidden_size});
    bf16("head.weight", {s_.vocab_size, s_.hidden_size});
    bf16("norm.weight", {s_.hidden_size});
    for (std::int64_t l = 0; l < s_.all_layers(); ++l) {
      unit_ = 1 + l;
      layer(l);
    }
    unit_ = 0;
    if (s_.has_vision())
      vision();
    return std::move(out_);
  }

private:
  void add(std::string name, dtype type, tensor_shape shape) {
    out_.push_back({std::move(name), type, shape, role_, unit_, false});
  }
  void bf16(std::string name, tensor_shape shape) { add(std::move(name), dtype::bfloat16, shape); }
  void f32(std::string name, tensor_shape shape) { add(std::move(name), dtype::f32, shape); }
  void fp8(const std::string& owner, std::int64_t out, std::int64_t in) {
    add(owner + ".weight", dtype::f8_e4m3, {out, in});
    add(owner + ".scale", dtype::f8_e8m0, {blocks(out), blocks(in)});
  }
  void fp4(const std::string& owner, std::int64_t out, std::int64_t in) {
    add(owner + ".weight", dtype::i8, {out, in / 2});
    add(owner + ".scale", dtype::f8_e8m0, {out, in / 32});
  }

  void layer(std::int64_t l) {
    const bool draft = s_.is_draft(l);
    const std::string p =
        draft ? fmt::format("mtp.{}.", l - s_.num_hidden_layers) : fmt::format("layers.{}.", l);
    bf16(p + "attn_norm.weight", {s_.hidden_size});
    bf16(p + "ffn_norm.weight", {s_.hidden_size});
    attention(p + "attn.", l);
    for (const char* site : {"attn", "ffn"}) {
      f32(p + "hc_" + site + "_fn", {s_.mix_rows(), s_.stream_width()});
      f32(p + "hc_" + site + "_base", {s_.mix_rows()});
      f32(p + "hc_" + site + "_scale", {3});
    }
    moe(p + "ffn.", s_.experts(l));
    if (const auto k = draft ? std::nullopt : s_.engram_index(l))
      engram(p + "engram.", *k);
    if (draft)
      draft_globals(p, l - s_.num_hidden_layers);
  }

  void attention(const std::string& a, std::int64_t l) {
    f32(a + "attn_sink", {s_.num_attention_heads});
    fp8(a + "wq_a", s_.q_lora_rank, s_.hidden_size);
    bf16(a + "q_norm.weight", {s_.q_lora_rank});
    fp8(a + "wq_b", s_.q_width(), s_.q_lora_rank);
    fp8(a + "wkv", s_.head_dim, s_.hidden_size);
    bf16(a + "kv_norm.weight", {s_.head_dim});
    fp8(a + "wo_a", s_.o_width(), s_.o_group_width());
    fp8(a + "wo_b", s_.hidden_size, s_.o_width());
    const bool kv_source = !s_.is_draft(l) && s_.is_kv_source(l);
    if (kv_source) {
      bf16(a + "compressor.wkv.weight", {s_.head_dim, s_.hidden_size});
      if (s_.ratio(l) > 1)
        bf16(a + "compressor.wgate.weight", {s_.head_dim, s_.hidden_size});
      bf16(a + "compressor.norm.weight", {s_.head_dim});
    }
    if (s_.is_draft(l) || !s_.is_index_source(l))
      return;
    fp8(a + "indexer.wq_b", s_.index_q_width(), s_.q_lora_rank);
    bf16(a + "indexer.weights_proj.weight", {s_.index_n_heads, s_.hidden_size});
    if (kv_source) {
      bf16(a + "indexer.wk.weight", {s_.index_head_dim, s_.head_dim});
      bf16(a + "indexer.k_norm.weight", {s_.index_head_dim});
    }
  }

  void moe(const std::string& f, std::int64_t experts) {
    bf16(f + "gate.weight", {experts, s_.hidden_size});
    f32(f + "gate.bias", {experts});
    f32(f + "gate.bias_vl", {experts});
    out_.back().optional = !s_.has_vision();
    role_ = tensor_role::routed_expert;
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::string x = fmt::format("{}experts.{}.", f, e);
      fp4(x + "w1", s_.moe_intermediate_size, s_.hidden_size);
      fp4(x + "w3", s_.moe_intermediate_size, s_.hidden_size);
      fp4(x + "w2", s_.hidden_size, s_.moe_intermediate_size);
    }
    role_ = tensor_role::dense;
    fp8(f + "shared_experts.w1", s_.moe_intermediate_size, s_.hidden_size);
    fp8(f + "shared_experts.w3", s_.moe_intermediate_size, s_.hidden_size);
    fp8(f + "shared_experts.w2", s_.hidden_size, s_.moe_intermediate_size);
  }

  void engram(const std::string& g, std::size_t k) {
    role_ = tensor_role::engram_table;
    const std::int64_t rows = s_.engram_num_embeddings[k];
    add(g + "embed.weight", dtype::f8_e4m3, {rows, s_.engram_head_dim});
    add(g + "embed.scale", dtype::f8_e8m0, {rows, s_.engram_head_dim / 32});
    role_ = tensor_role::dense;
    fp8(g + "wkv", s_.hidden_size * (s_.hc_mult + 1), s_.engram_width());
    bf16(g + "q_weight", {s_.hc_mult, s_.hidden_size});
    bf16(g + "k_weight", {s_.hc_mult, s_.hidden_size});
  }

  void draft_globals(const std::string& p, std::int64_t m) {
    if (m == 0) {
      const auto taps = static_cast<std::int64_t>(s_.dspark_target_layer_ids.size());
      fp8(p + "main_proj", s_.hidden_size, s_.hidden_size * taps);
      bf16(p + "main_norm.weight", {s_.hidden_size});
    }
    if (m == s_.draft_layers() - 1) {
      bf16(p + "norm.weight", {s_.hidden_size});
      bf16(p + "markov_head.embed.weight", {s_.vocab_size, s_.dspark_markov_rank});
      bf16(p + "markov_head.head.weight", {s_.vocab_size, s_.dspark_markov_rank});
      bf16(p + "confidence_head.proj.weight", {1, s_.hidden_size + s_.dspark_markov_rank});
    }
  }

  void linear(const std::string& owner, std::int64_t out, std::int64_t in, bool bias) {
    bf16(owner + ".weight", {out, in});
    if (bias)
      bf16(owner + ".bias", {out});
  }
  void vision() {
    role_ = tensor_role::vision;
    const auto& v = s_.vision;
    const auto w = v.hidden_size;
    linear("vision.patch_embed.proj", w, 3 * v.patch_size * v.patch_size, true);
    for (std::int64_t b = 0; b < v.num_hidden_layers; ++b) {
      const std::string p = fmt::format("vision.blocks.{}.", b);
      bf16(p + "norm1.weight", {w});
      linear(p + "attn.wqkv", 3 * w, w, true);
      linear(p + "attn.wo", w, w, true);
      bf16(p + "norm2.weight", {w});
      linear(p + "mlp.w1", 2 * v.intermediate_size, w, false);
      linear(p + "mlp.w2", w, v.intermediate_size, false);
    }
    bf16("vision.norm.weight", {w});
    linear("aligner.w1", s_.hidden_size, w * v.downsample_ratio * v.downsample_ratio, true);
    linear("aligner.w2", s_.hidden_size, s_.hidden_size, true);
    for (const char* name : {"image_start", "image_end", "image_newline"})
      bf16(name, {s_.hidden_size});
  }

  const model_spec& s_;
  std::vector<expected_tensor> out_;
  tensor_role role_ = tensor_role::dense;
  std::int64_t unit_ = 0;
};

} // namespace

std::vector<expected_tensor> expected_tensors(const model_spec& spec) {
  return table_builder{spec}.build();
}

bool type_fits(dtype expected, dtype found) noexcept {
  return expected == found
         || (found == dtype::u8 && (expected == dtype::i8 || expected == dtype::f8_e8m0));
}

} // namespace di::engine
