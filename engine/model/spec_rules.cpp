// SPDX-License-Identifier: Apache-2.0
#include "engine/model/spec_rules.hpp"

#include <algorithm>
#include <limits>

namespace di::engine {
namespace {

// Bounds that keep every product below 2^63 and every table small enough to enumerate.
constexpr std::int64_t width_max = std::int64_t{1} << 20;
constexpr std::int64_t layers_max = 1024;
constexpr std::int64_t experts_max = 8192;
constexpr std::int64_t vocab_max = std::int64_t{1} << 24;
constexpr std::int64_t positions_max = std::int64_t{1} << 30;
constexpr std::int64_t classes_max = std::int64_t{1}
                                     << 30; ///< the multiplier draw needs bound > 2^32
constexpr std::int64_t engram_primes_max = 4096;
constexpr std::int64_t tensors_max = std::int64_t{1} << 21;

/// Reports against one file with "key: expected ..., found ..." texts.
class rules {
public:
  rules(model_spec& s, std::string_view file, problem_list& out) : s_{s}, file_{file}, out_{out} {}

  void run() {
    sizes();
    quantised_widths();
    if (in_range_) { // later rules index by layer
      schedule();
      candidates();
      drafts();
      engram();
    }
    vision();
    moe();
  }

private:
  template <class... Args>
  void bad(fmt::format_string<Args...> text, Args&&... args) {
    out_.add(ec::bad_config, "{}: {}", file_, fmt::format(text, std::forward<Args>(args)...));
  }
  bool range(std::string_view key, std::int64_t v, std::int64_t lo, std::int64_t hi) {
    if (v >= lo && v <= hi)
      return true;
    bad("{}: expected {}..{}, found {}", key, lo, hi, v);
    return false;
  }
  void positive(std::string_view key, double v) {
    if (!(v > 0))
      bad("{}: expected a positive number, found {}", key, v);
  }
  bool has(const std::vector<std::int64_t>& list, std::int64_t v) const {
    return std::find(list.begin(), list.end(), v) != list.end();
  }
  /// Ascending without repeats and inside [0, layers).
  bool layer_list(std::string_view key, const std::vector<std::int64_t>& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!range(fmt::format("{}[{}]", key, i), list[i], 0, s_.num_hidden_layers - 1))
        return false;
      if (i > 0 && list[i] <= list[i - 1]) {
        bad("{}[{}]: expected ascending layers, found {} after {}", key, i, list[i], list[i - 1]);
        return false;
      }
    }
    return true;
  }

  void sizes() {
    range("vocab_size", s_.vocab_size, 1, vocab_max);
    range("hidden_size", s_.hidden_size, 1, width_max);
    in_range_ &= range("num_hidden_layers", s_.num_hidden_layers, 1, layers_max);
    in_range_ &= range("num_nextn_predict_layers", s_.num_nextn_predict_layers, 0, layers_max);
    widths_ok_ &= range("num_attention_heads", s_.num_attention_heads, 1, 4096);
    widths_ok_ &= range("head_dim", s_.head_dim, 1, 65536);
    widths_ok_ &= range("o_groups", s_.o_groups, 1, 4096);
    widths_ok_ &= range("o_lora_rank", s_.o_lora_rank, 1, width_max);
    range("q_lora_rank", s_.q_lora_rank, 1, width_max);
    range("max_position_embeddings", s_.max_position_embeddings, 1, positions_max);
    range("sliding_window", s_.sliding_window, 1, positions_max);
    range("moe_intermediate_size", s_.moe_intermediate_size, 1, width_max);
    range("hc_mult", s_.hc_mult, 1, 16);
    range("hc_sinkhorn_iters", s_.hc_sinkhorn_iters, 1, 1000);
    if (!s_.index_source_layer_ids.empty()) {
      range("index_n_heads", s_.index_n_heads, 1, 4096);
      range("index_head_dim", s_.index_head_dim, 1, 65536);
      range("index_topk", s_.index_topk, 1, positions_max);
    }
    positive("rms_norm_eps", s_.rms_norm_eps);
    positive("hc_eps", s_.hc_eps);
    positive("rope_theta", s_.rope_theta);
    positive("compress_rope_theta", s_.compress_rope_theta);
    positive("rope_scaling.factor", s_.rope_scaling.factor);
    positive("rope_scaling.beta_fast", s_.rope_scaling.beta_fast);
    positive("rope_scaling.beta_slow", s_.rope_scaling.beta_slow);
    range("rope_scaling.original_max_position_embeddings",
          s_.rope_scaling.original_max_position_embeddings, 0, positions_max);
    token("bos_token_id", s_.bos_token_id);
    token("eos_token_id", s_.eos_token_id);
    token("pad_token_id", s_.pad_token_id);
    if (s_.image_token_id != -1)
      token("image_token_id", s_.image_token_id);
  }
  void token(std::string_view key, std::int64_t id) { range(key, id, 0, s_.vocab_size - 1); }

  void multiple_of_32(std::string_view what, std::int64_t v) {
    if (v % 32 != 0)
      bad("{}: expected a multiple of 32 (block of the quantised formats), found {}", what, v);
  }
  void quantised_widths() {
    multiple_of_32("hidden_size", s_.hidden_size);
    multiple_of_32("q_lora_rank", s_.q_lora_rank);
    multiple_of_32("head_dim", s_.head_dim);
    multiple_of_32("moe_intermediate_size", s_.moe_intermediate_size);
    std::int64_t rope_dims_max = s_.head_dim;
    if (!s_.index_source_layer_ids.empty()) {
      multiple_of_32("index_head_dim", s_.index_head_dim);
      rope_dims_max = std::min(rope_dims_max, s_.index_head_dim);
    }
    if (s_.o_groups > 0 && s_.num_attention_heads % s_.o_groups != 0)
      bad("o_groups: expected a divisor of num_attention_heads {}, found {}",
          s_.num_attention_heads, s_.o_groups);
    else if (widths_ok_) {
      multiple_of_32("num_attention_heads * head_dim / o_groups", s_.o_group_width());
      multiple_of_32("o_groups * o_lora_rank", s_.o_width());
    }
    if (s_.qk_rope_head_dim < 2 || s_.qk_rope_head_dim % 2 != 0
        || s_.qk_rope_head_dim > rope_dims_max)
      bad("qk_rope_head_dim: expected an even number in 2..{} (head_dim and index_head_dim), found "
          "{}",
          rope_dims_max, s_.qk_rope_head_dim);
  }

  void schedule() {
    const auto layers = s_.num_hidden_layers;
    const auto n = static_cast<std::int64_t>(s_.compress_ratios.size());
    if (n < layers || n > layers + s_.num_nextn_predict_layers) {
      bad("compress_ratios: expected {}..{} entries (layers, then drafts), found {}", layers,
          layers + s_.num_nextn_predict_layers, n);
      in_range_ = false;
      return;
    }
    bool listed = layer_list("kv_source_layer_ids", s_.kv_source_layer_ids);
    listed &= layer_list("index_source_layer_ids", s_.index_source_layer_ids);
    for (std::int64_t l = 0; l < n; ++l) {
      const auto r = s_.compress_ratios[static_cast<std::size_t>(l)];
      if (r < 0 || r > 2 || (l >= layers && r != 0))
        bad("compress_ratios[{}]: expected {}, found {}", l,
            l >= layers ? "0 (draft layer)" : "0, 1 or 2", r);
    }
    if (!listed)
      return;
    std::int64_t kv = -1;
    std::int64_t index = -1;
    for (std::int64_t l = 0; l < layers; ++l) {
      if (s_.is_kv_source(l))
        kv = l;
      if (s_.is_index_source(l))
        index = l;
      layer_sources(l, kv, index);
    }
  }
  void layer_sources(std::int64_t l, std::int64_t kv, std::int64_t index) {
    const auto r = s_.ratio(l);
    if (s_.is_kv_source(l) && !s_.is_index_source(l))
      bad("index_source_layer_ids: expected KV source {} in it too", l);
    if (r == 0) {
      if (s_.is_kv_source(l) || s_.is_index_source(l))
        bad("compress_ratios[{}]: expected 1 or 2 (the layer is a source), found 0", l);
      return;
    }
    if (kv < 0)
      bad("kv_source_layer_ids: expected a source at or before layer {} of ratio {}, found none", l,
          r);
    else if (s_.ratio(kv) != r)
      bad("compress_ratios[{}]: expected {}, the ratio of its KV source {}, found {}", l,
          s_.ratio(kv), kv, r);
    if (index < 0 || index < kv)
      bad("index_source_layer_ids: expected a source in layers {}..{} for layer {}, found none",
          std::max<std::int64_t>(kv, 0), l, l);
  }

  void candidates() {
    const auto source = s_.candidate_source_layer_id;
    if (source < 0 || !in_range_)
      return;
    range("candidate_topk_blocks", s_.candidate_topk_blocks, 1, positions_max);
    range("candidate_block_size", s_.candidate_block_size, 1, positions_max);
    if (!s_.is_index_source(source))
      bad("candidate_source_layer_id: expected one of index_source_layer_ids, found {}", source);
    for (const auto kv : s_.kv_source_layer_ids)
      if (kv > source)
        bad("candidate_source_layer_id: expected the last KV source or a later layer, found {} "
            "before KV source {}",
            source, kv);
    // In floating point: the product of two unchecked numbers could overflow.
    const double room = (static_cast<double>(s_.candidate_topk_blocks) - 1)
                            * static_cast<double>(s_.candidate_block_size)
                        + 1;
    if (room < static_cast<double>(s_.index_topk))
      bad("candidate_topk_blocks: expected (blocks - 1) * candidate_block_size + 1 >= index_topk "
          "{}, found {} blocks of {}",
          s_.index_topk, s_.candidate_topk_blocks, s_.candidate_block_size);
  }

  void drafts() {
    range("dspark_block_size", s_.dspark_block_size, 0, 1024);
    if (s_.draft_layers() == 0)
      return;
    token("dspark_noise_token_id", s_.dspark_noise_token_id);
    if (s_.dspark_target_layer_ids.empty())
      bad("dspark_target_layer_ids: expected at least one layer, found none");
    layer_list("dspark_target_layer_ids", s_.dspark_target_layer_ids);
    range("dspark_markov_rank", s_.dspark_markov_rank, 1, width_max);
    if (range("dspark_n_routed_experts", s_.dspark_n_routed_experts, 1, experts_max))
      range("dspark_num_experts_per_tok", s_.dspark_num_experts_per_tok, 1,
            s_.dspark_n_routed_experts);
  }

  void engram() {
    if (s_.engram_layer_ids.empty())
      return;
    bool good = layer_list("engram_layer_ids", s_.engram_layer_ids);
    good &= range("engram_max_ngram_size", s_.engram_max_ngram_size, 2, 16);
    good &= range("engram_n_heads", s_.engram_n_heads, 1, 1024);
    good &= range("engram_head_dim", s_.engram_head_dim, 1, 65536);
    good &= range("engram_vocab_size", s_.engram_vocab_size, 1, positions_max);
    good &= range("engram_compressed_vocab_size", s_.engram_compressed_vocab_size, 1, classes_max);
    token("engram_pad_token_id", s_.engram_pad_token_id);
    multiple_of_32("engram_head_dim", s_.engram_head_dim);
    const auto layers = static_cast<std::int64_t>(s_.engram_layer_ids.size());
    if (good && layers * s_.engram_columns() > engram_primes_max) {
      bad("engram_n_heads: expected at most {} hash columns in all, found {}", engram_primes_max,
          layers * s_.engram_columns());
      good = false;
    }
    if (s_.engram_num_embeddings.size() != s_.engram_layer_ids.size()) {
      bad("engram_num_embeddings: expected {} entries, one per Engram layer, found {}", layers,
          s_.engram_num_embeddings.size());
      good = false;
    }
    if (!good)
      return;
    s_.engram =
        compute_engram_constants({s_.engram_layer_ids, s_.engram_max_ngram_size, s_.engram_n_heads,
                                  s_.engram_vocab_size, s_.engram_compressed_vocab_size});
    for (std::size_t i = 0; i < s_.engram_layer_ids.size(); ++i)
      if (s_.engram.rows(i) != s_.engram_num_embeddings[i])
        bad("engram_num_embeddings[{}]: expected {}, the sum of the primes of layer {}, found {}",
            i, s_.engram.rows(i), s_.engram_layer_ids[i], s_.engram_num_embeddings[i]);
  }

  void vision() {
    const auto& v = s_.vision;
    if (!range("vision_config.num_hidden_layers", v.num_hidden_layers, 0, layers_max)
        || !s_.has_vision())
      return;
    range("vision_config.hidden_size", v.hidden_size, 1, 65536);
    range("vision_config.intermediate_size", v.intermediate_size, 1, width_max);
    range("vision_config.patch_size", v.patch_size, 1, 1024);
    range("vision_config.downsample_ratio", v.downsample_ratio, 1, 64);
    range("vision_config.max_image_tokens", v.max_image_tokens, 1, positions_max);
    range("vision_config.min_pixels", v.min_pixels, 0, positions_max);
    positive("vision_config.rope_theta", v.rope_theta);
    if (range("vision_config.num_attention_heads", v.num_attention_heads, 1, 4096)
        && v.hidden_size % (4 * v.num_attention_heads) != 0)
      bad("vision_config.hidden_size: expected a multiple of 4 * num_attention_heads {} (2-D "
          "rope), found {}",
          v.num_attention_heads, v.hidden_size);
    if (s_.image_token_id < 0)
      bad("image_token_id: expected with a vision_config, found none");
  }

  void moe() {
    if (range("n_routed_experts", s_.n_routed_experts, 1, experts_max))
      range("num_experts_per_tok", s_.num_experts_per_tok, 1, s_.n_routed_experts);
    if (s_.n_shared_experts != 1)
      bad("n_shared_experts: expected 1, found {}", s_.n_shared_experts);
    positive("gate_temp", s_.gate_temp);
    positive("swiglu_limit", s_.swiglu_limit);
    const auto countable = [](std::int64_t n) { return n >= 0 && n <= experts_max; };
    if (!in_range_ || !countable(s_.n_routed_experts) || !countable(s_.dspark_n_routed_experts))
      return;
    const auto count =
        s_.num_hidden_layers * s_.n_routed_experts + s_.draft_layers() * s_.dspark_n_routed_experts;
    if (6 * count > tensors_max)
      bad("n_routed_experts: expected at most {} expert tensors in all, found {}", tensors_max,
          6 * count);
  }

  model_spec& s_;
  std::string_view file_;
  problem_list& out_;
  bool in_range_ = true;  ///< layer counts and ratios may be used as indices
  bool widths_ok_ = true; ///< products of head and group widths cannot overflow
};

} // namespace

void check_model_rules(model_spec& spec, std::string_view file, problem_list& problems) {
  rules{spec, file, problems}.run();
}

} // namespace di::engine
