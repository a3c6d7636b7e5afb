// SPDX-License-Identifier: Apache-2.0
// Binds checkpoint tensors to the views that kernels understand.
#include "engine/model/loaded_model.hpp"

#include "engine/model/checkpoint.hpp"

#include <bit>
#include <cmath>
#include <string>
#include <utility>

namespace di::engine {

namespace {

float decode_e4m3(std::uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

} // namespace

/// Fills a loaded_model from an open checkpoint. Every tensor is there with the right shape and
/// type: checkpoint::open() has seen to that.
class weight_binder {
public:
  explicit weight_binder(loaded_model& model) : model_{model}, spec_{model.spec_} {}

  void bind() {
    model_.embedding_ = vector_bf16("embed.weight");
    model_.norm_ = vector_bf16("norm.weight");
    model_.head_ = plain("head.weight");
    for (std::int64_t layer = 0; layer < spec_.all_layers(); ++layer)
      model_.layers_.push_back(bind_layer(layer));
    if (spec_.draft_layers() > 0)
      model_.drafts_ = drafts();
    model_.engram_classes_ = model_.files_->engram_token_map();
    model_.window_freq_ = rope_frequencies({spec_.rope_theta, spec_.qk_rope_head_dim, false, {}});
    for (std::int64_t layer = 0; layer < spec_.num_hidden_layers; ++layer)
      if (spec_.ratio(layer) > 0) {
        model_.compress_freq_ = rope_frequencies(spec_.rope(layer));
        break;
      }
  }

private:
  const tensor_view& find(const std::string& name) const {
    const tensor_view* view = model_.files_->find(name);
    if (view == nullptr)
      detail::check_failed(__FILE__, __LINE__, "an opened checkpoint has every tensor", name);
    return *view;
  }
  const kernels::bf16* vector_bf16(const std::string& name) const {
    return find(name).as<kernels::bf16>();
  }
  const float* vector_f32(const std::string& name) const { return find(name).as<float>(); }

  kernels::weight plain(const std::string& name) const {
    const tensor_view& view = find(name);
    return {kernels::weight_kind::bf16, view.data, nullptr, view.shape[0], view.shape[1]};
  }
  kernels::weight fp8(const std::string& owner) const {
    const tensor_view& view = find(owner + ".weight");
    return {kernels::weight_kind::fp8_tile32, view.data, find(owner + ".scale").as<std::uint8_t>(),
            view.shape[0], view.shape[1]};
  }
  kernels::weight fp4(const std::string& owner) const {
    const tensor_view& view = find(owner + ".weight"); // two inputs a byte
    return {kernels::weight_kind::fp4_row32, view.data, find(owner + ".scale").as<std::uint8_t>(),
            view.shape[0], 2 * view.shape[1]};
  }

  /// Dequantises to bf16 (exact) in memory of the model's own.
  kernels::weight expand(const kernels::weight& w) {
    const auto count = static_cast<std::size_t>(w.out * w.in);
    auto copy = std::make_unique<std::byte[]>(count * sizeof(kernels::bf16));
    auto* to = reinterpret_cast<kernels::bf16*>(copy.get());
    const auto* from = static_cast<const std::uint8_t*>(w.data);
    const std::int64_t tiles = (w.in + 31) / 32;
    for (std::int64_t o = 0; o < w.out; ++o)
      for (std::int64_t i = 0; i < w.in; ++i) {
        const int scale = w.scale[(o / 32) * tiles + i / 32];
        const float value = std::ldexp(decode_e4m3(from[o * w.in + i]), scale - 127);
        *to++ = static_cast<kernels::bf16>(std::bit_cast<std::uint32_t>(value) >> 16);
      }
    kernels::weight expanded{kernels::weight_kind::bf16, copy.get(), nullptr, w.out, w.in};
    model_.copied_bytes_ += count * sizeof(kernels::bf16);
    model_.owned_.push_back(std::move(copy));
    return expanded;
  }

  /// One view per group of rows. Groups that begin inside a scale tile have no view of the stored
  /// form, so such a matrix is expanded.
  std::vector<kernels::weight> groups(kernels::weight w) {
    const std::int64_t rows = spec_.o_lora_rank;
    if (spec_.o_groups > 1 && rows % 32 != 0)
      w = expand(w);
    std::vector<kernels::weight> views;
    for (std::int64_t g = 0; g < spec_.o_groups; ++g) {
      kernels::weight view = w;
      view.out = rows;
      if (w.kind == kernels::weight_kind::bf16) {
        view.data = static_cast<const kernels::bf16*>(w.data) + g * rows * w.in;
      } else {
        view.data = static_cast<const std::uint8_t*>(w.data) + g * rows * w.in;
        view.scale = w.scale + g * (rows / 32) * ((w.in + 31) / 32);
      }
      views.push_back(view);
    }
    return views;
  }

  mix_weights mix(const std::string& prefix) const {
    return {vector_f32(prefix + "_fn"), vector_f32(prefix + "_scale"),
            vector_f32(prefix + "_base")};
  }

  layer_weights bind_layer(std::int64_t layer) {
    const std::string p = spec_.is_draft(layer)
                              ? fmt::format("mtp.{}.", layer - spec_.num_hidden_layers)
                              : fmt::format("layers.{}.", layer);
    layer_weights w;
    w.attention_mix = mix(p + "hc_attn");
    w.ffn_mix = mix(p + "hc_ffn");
    w.attention.norm = vector_bf16(p + "attn_norm.weight");
    w.attention.q_norm = vector_bf16(p + "attn.q_norm.weight");
    w.attention.kv_norm = vector_bf16(p + "attn.kv_norm.weight");
    w.attention.sink = vector_f32(p + "attn.attn_sink");
    w.attention.wq_a = fp8(p + "attn.wq_a");
    w.attention.wq_b = fp8(p + "attn.wq_b");
    w.attention.wkv = fp8(p + "attn.wkv");
    w.attention.wo_b = fp8(p + "attn.wo_b");
    w.attention.wo_a = groups(fp8(p + "attn.wo_a"));
    if (spec_.is_kv_source(layer))
      w.compressor = compressor(p + "attn.compressor.", spec_.ratio(layer));
    if (spec_.is_index_source(layer))
      w.indexer = indexer(p + "attn.indexer.", spec_.is_kv_source(layer));
    if (const auto index = spec_.engram_index(layer))
      w.engram = engram(p + "engram.", *index);
    w.moe = moe(p, spec_.experts(layer));
    return w;
  }

  std::unique_ptr<draft_weights> drafts() const {
    auto w = std::make_unique<draft_weights>();
    w->main_proj = fp8("mtp.0.main_proj");
    w->main_norm = vector_bf16("mtp.0.main_norm.weight");
    const std::string p = fmt::format("mtp.{}.", spec_.draft_layers() - 1);
    w->norm = vector_bf16(p + "norm.weight");
    w->markov_embed = vector_bf16(p + "markov_head.embed.weight");
    w->markov_head = plain(p + "markov_head.head.weight");
    w->confidence = plain(p + "confidence_head.proj.weight");
    return w;
  }

  std::unique_ptr<compressor_weights> compressor(const std::string& p, std::int64_t ratio) const {
    auto w = std::make_unique<compressor_weights>();
    w->wkv = plain(p + "wkv.weight");
    if (ratio == 2)
      w->wgate = plain(p + "wgate.weight");
    w->norm = vector_bf16(p + "norm.weight");
    return w;
  }

  std::unique_ptr<indexer_weights> indexer(const std::string& p, bool owns_keys) const {
    auto w = std::make_unique<indexer_weights>();
    w->wq_b = fp8(p + "wq_b");
    w->weights_proj = plain(p + "weights_proj.weight");
    if (owns_keys) {
      w->wk = plain(p + "wk.weight");
      w->k_norm = vector_bf16(p + "k_norm.weight");
    }
    return w;
  }

  std::unique_ptr<engram_weights> engram(const std::string& p, std::size_t index) const {
    auto w = std::make_unique<engram_weights>();
    w->table = find(p + "embed.weight").as<std::uint8_t>();
    w->table_scale = find(p + "embed.scale").as<std::uint8_t>();
    w->wkv = fp8(p + "wkv");
    w->q_weight = vector_bf16(p + "q_weight");
    w->k_weight = vector_bf16(p + "k_weight");
    w->row_offsets = spec_.engram.row_offsets(index);
    return w;
  }

  moe_weights moe(const std::string& p, std::int64_t experts) const {
    moe_weights w;
    w.norm = vector_bf16(p + "ffn_norm.weight");
    w.gate = plain(p + "ffn.gate.weight");
    w.gate_bias = vector_f32(p + "ffn.gate.bias");
    const std::string shared = p + "ffn.shared_experts.";
    w.shared = {fp8(shared + "w1"), fp8(shared + "w3"), fp8(shared + "w2")};
    w.experts.reserve(static_cast<std::size_t>(experts));
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::string expert = fmt::format("{}ffn.experts.{}.", p, e);
      w.experts.push_back({fp4(expert + "w1"), fp4(expert + "w3"), fp4(expert + "w2")});
    }
    return w;
  }

  loaded_model& model_;
  const model_spec& spec_;
};

loaded_model::loaded_model() = default;
loaded_model::~loaded_model() = default;

result<std::unique_ptr<loaded_model>> loaded_model::load(const std::string& folder) {
  DI_TRY(checkpoint files, checkpoint::open(folder));
  std::unique_ptr<loaded_model> model{new loaded_model};
  model->files_ = std::make_unique<checkpoint>(std::move(files));
  model->spec_ = model->files_->spec();
  weight_binder{*model}.bind();
  return model;
}

kernels::rope_table loaded_model::rope(std::int64_t layer) const noexcept {
  const std::vector<float>& freq = spec_.ratio(layer) > 0 ? compress_freq_ : window_freq_;
  return {freq.data(), spec_.qk_rope_head_dim};
}

} // namespace di::engine
