// SPDX-License-Identifier: Apache-2.0
// config.json text -> model_spec: both layouts, both spellings, types. Rules are in spec_rules.cpp.
#include "engine/model/bounded_json.hpp"
#include "engine/model/problems.hpp"
#include "engine/model/spec.hpp"
#include "engine/model/spec_rules.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

namespace di::engine {
namespace {

using nlohmann::json;

constexpr std::size_t list_max = 4096; ///< [entries] longest list that is read
constexpr std::size_t unknown_keys_max = 64;
constexpr const char* same = ""; ///< the flat layout spells this key like the other

enum class need : std::uint8_t { required, optional };

std::string shown(const json& v) {
  std::string text = v.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 48)
    text = text.substr(0, 45) + "...";
  return text;
}

/// One JSON object of the file, read by key. Remembers which keys were asked for.
class section {
public:
  section(const json& object, std::string prefix, std::string_view file, problem_list& problems)
      : object_{object}, prefix_{std::move(prefix)}, file_{file}, problems_{problems} {}

  /// The value under its Hugging Face or its flat key; null counts as absent.
  const json* find(const char* key, const char* flat = same) {
    const json* a = lookup(key);
    const json* b = *flat != '\0' ? lookup(flat) : nullptr;
    if (a != nullptr && b != nullptr && *a != *b)
      bad(key, "expected the same value as its other spelling {} ({}), found {}", flat, shown(*b),
          shown(*a));
    return a != nullptr ? a : b;
  }

  void integer(const char* key, const char* flat, std::int64_t& out, need n = need::optional) {
    const json* v = get(key, flat, n);
    if (v == nullptr)
      return;
    if (const auto i = as_integer(*v))
      out = *i;
    else
      bad(key, "expected an integer below 2^63, found {}", shown(*v));
  }

  void token(const char* key, std::int32_t& out) {
    std::int64_t wide = out;
    integer(key, same, wide);
    if (wide < -1 || wide > std::numeric_limits<std::int32_t>::max())
      bad(key, "expected a token id, found {}", wide);
    else
      out = static_cast<std::int32_t>(wide);
  }

  void real(const char* key, const char* flat, double& out, need n = need::optional) {
    const json* v = get(key, flat, n);
    if (v == nullptr)
      return;
    if (v->is_number() && std::isfinite(v->get<double>()))
      out = v->get<double>();
    else
      bad(key, "expected a finite number, found {}", shown(*v));
  }

  void integers(const char* key, const char* flat, std::vector<std::int64_t>& out,
                need n = need::optional) {
    const json* v = get(key, flat, n);
    if (v == nullptr)
      return;
    if (!v->is_array() || v->size() > list_max) {
      bad(key, "expected a list of at most {} integers, found {}", list_max, shown(*v));
      return;
    }
    out.clear();
    for (const auto& e : *v) {
      const auto i = as_integer(e);
      if (!i) {
        bad(key, "expected integers below 2^63, found {} at position {}", shown(e), out.size());
        return;
      }
      out.push_back(*i);
    }
  }

  /// A key that, if present, must have one of these values.
  void fixed(const char* key, const char* flat, std::initializer_list<json> allowed,
             need n = need::optional) {
    const json* v = get(key, flat, n);
    if (v == nullptr || std::find(allowed.begin(), allowed.end(), *v) != allowed.end())
      return;
    std::string names;
    for (const auto& a : allowed)
      names += (names.empty() ? "" : " or ") + a.dump();
    bad(key, "expected {}, found {}", names, shown(*v));
  }

  /// A nested object; absent gives null.
  const json* object(const char* key, need n = need::optional) {
    const json* v = get(key, same, n);
    if (v == nullptr || v->is_object())
      return v;
    bad(key, "expected an object, found {}", shown(*v));
    return nullptr;
  }

  void ignore(std::initializer_list<const char*> keys) {
    for (const char* k : keys)
      used_.insert(k);
  }

  void unknown(std::vector<std::string>& out) const {
    for (const auto& item : object_.items())
      if (used_.count(item.key()) == 0 && out.size() < unknown_keys_max)
        out.push_back(prefix_ + item.key().substr(0, 64));
  }

  template <class... Args>
  void bad(const char* key, fmt::format_string<Args...> text, Args&&... args) {
    problems_.add(ec::bad_config, "{}: {}{}: {}", file_, prefix_, key,
                  fmt::format(text, std::forward<Args>(args)...));
  }

private:
  const json* lookup(const char* key) {
    used_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  const json* get(const char* key, const char* flat, need n) {
    const json* v = find(key, flat);
    if (v == nullptr && n == need::required)
      bad(key, "expected a value, found none");
    return v;
  }
  static std::optional<std::int64_t> as_integer(const json& v) {
    if (v.is_number_unsigned()) {
      const auto u = v.get<std::uint64_t>();
      if (u <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return static_cast<std::int64_t>(u);
      return std::nullopt;
    }
    if (v.is_number_integer())
      return v.get<std::int64_t>();
    return std::nullopt;
  }

  const json& object_;
  std::string prefix_;
  std::string_view file_;
  problem_list& problems_;
  std::set<std::string, std::less<>> used_;
};

void read_fixed(section& t) {
  t.fixed("num_key_value_heads", same, {1});
  t.fixed("attention_bias", same, {false});
  t.fixed("attention_dropout", same, {0, 0.0});
  t.fixed("hidden_act", same, {"silu"});
  t.fixed("scoring_func", "score_func", {"sqrtsoftplus"});
  t.fixed("topk_method", same, {"noaux_tc"});
  t.fixed("norm_topk_prob", same, {true});
  t.fixed("tie_word_embeddings", same, {false});
  t.ignore({"initializer_range", "use_cache", "layer_types", "transformers_version",
            "max_batch_size", "max_seq_len"});
}

void read_sizes(section& t, model_spec& s) {
  t.integer("vocab_size", same, s.vocab_size, need::required);
  t.integer("hidden_size", "dim", s.hidden_size, need::required);
  t.integer("num_hidden_layers", "n_layers", s.num_hidden_layers, need::required);
  t.integer("num_attention_heads", "n_heads", s.num_attention_heads, need::required);
  t.integer("head_dim", same, s.head_dim, need::required);
  t.integer("qk_rope_head_dim", "rope_head_dim", s.qk_rope_head_dim, need::required);
  t.integer("q_lora_rank", same, s.q_lora_rank, need::required);
  t.integer("o_groups", same, s.o_groups, need::required);
  t.integer("o_lora_rank", same, s.o_lora_rank, need::required);
  t.integer("sliding_window", "window_size", s.sliding_window, need::required);
  t.real("rms_norm_eps", "norm_eps", s.rms_norm_eps);
}

void read_schedule(section& t, model_spec& s) {
  t.integers("compress_ratios", same, s.compress_ratios, need::required);
  t.integers("kv_source_layer_ids", "kv_source_layers", s.kv_source_layer_ids, need::required);
  t.integers("index_source_layer_ids", "index_source_layers", s.index_source_layer_ids,
             need::required);
  t.integer("candidate_source_layer_id", "candidate_source_layer", s.candidate_source_layer_id);
  t.integer("candidate_topk_blocks", same, s.candidate_topk_blocks);
  t.integer("candidate_block_size", same, s.candidate_block_size);
  t.integer("index_n_heads", same, s.index_n_heads);
  t.integer("index_head_dim", same, s.index_head_dim);
  t.integer("index_topk", same, s.index_topk);
}

void read_moe(section& t, model_spec& s) {
  t.integer("n_routed_experts", same, s.n_routed_experts, need::required);
  t.integer("n_shared_experts", same, s.n_shared_experts);
  t.integer("num_experts_per_tok", "n_activated_experts", s.num_experts_per_tok, need::required);
  t.integer("moe_intermediate_size", "moe_inter_dim", s.moe_intermediate_size, need::required);
  t.real("routed_scaling_factor", "route_scale", s.routed_scaling_factor);
  t.real("gate_temp", same, s.gate_temp);
  t.real("swiglu_limit", same, s.swiglu_limit);
  t.integer("hc_mult", same, s.hc_mult);
  t.integer("hc_sinkhorn_iters", same, s.hc_sinkhorn_iters);
  t.real("hc_eps", same, s.hc_eps);
}

void read_engram_and_drafts(section& t, model_spec& s) {
  t.integers("engram_layer_ids", same, s.engram_layer_ids);
  t.integers("engram_num_embeddings", same, s.engram_num_embeddings);
  t.integer("engram_max_ngram_size", same, s.engram_max_ngram_size);
  t.integer("engram_n_heads", same, s.engram_n_heads);
  t.integer("engram_head_dim", same, s.engram_head_dim);
  t.integer("engram_vocab_size", same, s.engram_vocab_size);
  t.integer("engram_pad_token_id", "engram_pad_id", s.engram_pad_token_id);
  t.integer("engram_compressed_vocab_size", same, s.engram_compressed_vocab_size);
  t.integer("num_nextn_predict_layers", "n_mtp_layers", s.num_nextn_predict_layers);
  t.integer("dspark_block_size", same, s.dspark_block_size);
  t.integer("dspark_noise_token_id", same, s.dspark_noise_token_id);
  t.integers("dspark_target_layer_ids", same, s.dspark_target_layer_ids);
  t.integer("dspark_markov_rank", same, s.dspark_markov_rank);
  t.integer("dspark_n_routed_experts", same, s.dspark_n_routed_experts);
  t.integer("dspark_num_experts_per_tok", "dspark_n_activated_experts",
            s.dspark_num_experts_per_tok);
  if (s.dspark_n_routed_experts == 0)
    s.dspark_n_routed_experts = s.n_routed_experts;
  if (s.dspark_num_experts_per_tok == 0)
    s.dspark_num_experts_per_tok = s.num_experts_per_tok;
}

void read_quantization(section& q) {
  q.fixed("quant_method", same, {"fp8"}, need::required);
  q.fixed("activation_scheme", same, {"dynamic"});
  q.fixed("weight_block_size", same, {json::array({32, 32})});
  q.fixed("scale_fmt", same, {"ue8m0"});
  q.fixed("expert_dtype", same, {"fp4"});
  q.ignore({"fmt", "modules_to_not_convert"});
}

void read_vision(section& v, vision_spec& s, bool flat) {
  const auto key = [flat](const char* hf, const char* name) { return flat ? name : hf; };
  if (!flat)
    v.fixed("model_type", same, {"deepseek_v41_vision"});
  v.integer(key("num_hidden_layers", "vision_n_layers"), same, s.num_hidden_layers);
  v.integer(key("hidden_size", "vision_dim"), same, s.hidden_size);
  v.integer(key("num_attention_heads", "vision_n_heads"), same, s.num_attention_heads);
  v.integer(key("intermediate_size", "vision_inter_dim"), same, s.intermediate_size);
  v.integer(key("patch_size", "vision_patch_size"), same, s.patch_size);
  v.integer(key("downsample_ratio", "vision_downsample_ratio"), same, s.downsample_ratio);
  v.integer(key("max_image_tokens", "vision_max_n_token"), same, s.max_image_tokens);
  v.integer(key("min_pixels", "vision_min_pixels"), same, s.min_pixels);
  v.real(key("rope_theta", "vision_rope_theta"), same, s.rope_theta);
  v.real(key("max_wh_ratio", "vision_max_wh_ratio"), same, s.max_wh_ratio);
}

/// All sections of one file.
class config_reader {
public:
  config_reader(const json& root, std::string_view file, problem_list& problems)
      : root_{root}, file_{file}, problems_{problems} {}

  model_spec read() {
    section top{root_, "", file_, problems_};
    const json* text = top.object("text_config");
    const bool flat = text == nullptr;
    top.fixed("model_type", same, {"deepseek_v41"});
    top.fixed("architectures", same, {json::array({"DeepseekV41ForCausalLM"})});
    top.fixed("tie_word_embeddings", same, {false});
    top.ignore({"transformers_version"});
    read_tokens(top);
    if (flat) {
      top.fixed("dtype", same, {"fp8", "bfloat16"});
      top.fixed("scale_fmt", same, {"ue8m0"});
      top.fixed("expert_dtype", same, {"fp4"});
      read_text(top);
      read_vision(top, spec_.vision, true);
    } else {
      top.fixed("dtype", "torch_dtype", {"bfloat16"});
      section t{*text, "text_config.", file_, problems_};
      t.fixed("model_type", same, {"deepseek_v41_text"});
      t.fixed("dtype", "torch_dtype", {"bfloat16"});
      read_tokens(t);
      read_text(t);
      t.unknown(spec_.unknown_keys);
    }
    if (const json* q = top.object("quantization_config", flat ? need::optional : need::required)) {
      section s{*q, "quantization_config.", file_, problems_};
      read_quantization(s);
      s.unknown(spec_.unknown_keys);
    }
    if (const json* v = top.object("vision_config")) {
      section s{*v, "vision_config.", file_, problems_};
      read_vision(s, spec_.vision, false);
      s.unknown(spec_.unknown_keys);
    }
    top.unknown(spec_.unknown_keys);
    return std::move(spec_);
  }

private:
  void read_tokens(section& s) {
    s.token("bos_token_id", spec_.bos_token_id);
    s.token("eos_token_id", spec_.eos_token_id);
    s.token("pad_token_id", spec_.pad_token_id);
    s.token("image_token_id", spec_.image_token_id);
  }

  void read_text(section& t) {
    read_fixed(t);
    read_sizes(t, spec_);
    read_schedule(t, spec_);
    read_moe(t, spec_);
    read_engram_and_drafts(t, spec_);
    read_rope(t);
  }

  void read_rope(section& t) {
    auto& scaling = spec_.rope_scaling;
    t.real("rope_theta", same, spec_.rope_theta, need::required);
    t.real("compress_rope_theta", same, spec_.compress_rope_theta, need::required);
    t.real("rope_factor", same, scaling.factor);
    t.integer("original_seq_len", same, scaling.original_max_position_embeddings);
    t.real("beta_fast", same, scaling.beta_fast);
    t.real("beta_slow", same, scaling.beta_slow);
    if (const json* r = t.object("rope_scaling")) {
      section s{*r, "text_config.rope_scaling.", file_, problems_};
      s.fixed("rope_type", "type", {"yarn"}, need::required);
      s.real("factor", same, scaling.factor, need::required);
      s.integer("original_max_position_embeddings", same, scaling.original_max_position_embeddings,
                need::required);
      s.real("beta_fast", same, scaling.beta_fast);
      s.real("beta_slow", same, scaling.beta_slow);
      s.unknown(spec_.unknown_keys);
    }
    // The flat layout has no context length: it is the stretched original one.
    const double stretched =
        scaling.factor * static_cast<double>(scaling.original_max_position_embeddings);
    const bool derived =
        t.find("max_position_embeddings") == nullptr && stretched >= 1 && stretched < 1e9;
    if (derived)
      spec_.max_position_embeddings = static_cast<std::int64_t>(stretched);
    t.integer("max_position_embeddings", same, spec_.max_position_embeddings,
              derived ? need::optional : need::required);
  }

  const json& root_;
  std::string_view file_;
  problem_list& problems_;
  model_spec spec_;
};

} // namespace

result<model_spec> parse_model_spec(std::string_view text, std::string_view file) {
  DI_TRY(const json root, parse_bounded_json(text, file));
  if (!root.is_object())
    return fail(ec::bad_format, "{}: expected a JSON object, found {}", file, root.type_name());
  problem_list problems;
  model_spec spec = config_reader{root, file, problems}.read();
  if (problems.empty()) // a missing key would only repeat itself as a broken rule
    check_model_rules(spec, file, problems);
  if (!problems.empty())
    return fail(problems.to_error());
  return spec;
}

} // namespace di::engine
