// SPDX-License-Identifier: Apache-2.0
#include "engine/model/spec.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace di::engine {
namespace {

std::string file_text(const std::string& path) {
  std::ifstream in{std::string{DI_SOURCE_DIR} + "/" + path, std::ios::binary};
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string preset(const std::string& name) {
  return file_text("engine/model/presets/" + name + ".json");
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  const auto r = parse_model_spec(text);
  return r.ok() ? "no error" : r.error().render();
}

model_spec tiny() {
  return parse_model_spec(preset("tiny")).value();
}

TEST(model_spec, reads_every_preset_and_the_demo_model) {
  for (const auto* name : {"tiny", "tiny-vl", "small", "bench", "real"}) {
    const auto s = parse_model_spec(preset(name));
    ASSERT_TRUE(s.ok()) << name << ": " << s.error().render();
    EXPECT_TRUE(s->unknown_keys.empty()) << s->unknown_keys.front();
  }
  const auto demo = parse_model_spec(file_text("launch/models/demo/config.json"));
  ASSERT_TRUE(demo.ok()) << demo.error().render();
  EXPECT_EQ(demo->hidden_size, 192);
  EXPECT_EQ(demo->dspark_target_layer_ids, (std::vector<std::int64_t>{5, 6, 7}));
}

TEST(model_spec, knows_what_every_layer_of_the_real_schedule_does) {
  const auto s = parse_model_spec(preset("real")).value();
  EXPECT_EQ(s.kind(0), layer_kind::window);
  EXPECT_EQ(s.kind(2), layer_kind::source);
  EXPECT_EQ(s.kind(19), layer_kind::reuse);
  EXPECT_EQ(s.kind(20), layer_kind::source);
  EXPECT_EQ(s.kind(24), layer_kind::reindex);
  EXPECT_EQ(s.kind(40), layer_kind::window);
  EXPECT_EQ(s.kv_source_of(1), std::nullopt);
  EXPECT_EQ(s.kv_source_of(19), 14);
  EXPECT_EQ(s.kv_source_of(39), 20);
  EXPECT_EQ(s.index_source_of(27), 24);
  EXPECT_EQ(s.index_source_of(39), 36);
  EXPECT_FALSE(s.uses_candidates(20));
  EXPECT_TRUE(s.uses_candidates(24));
  EXPECT_EQ(s.last_kv_source(), 20);
  EXPECT_EQ(s.engram_index(14), 1U);
  EXPECT_EQ(s.engram_index(2), std::nullopt);
  EXPECT_EQ(s.tap_index(39), 2U);
  EXPECT_EQ(s.experts(39), 384);
  EXPECT_EQ(s.experts(40), 128);
  EXPECT_EQ(s.experts_per_token(42), 3);
  EXPECT_EQ(s.all_layers(), 43);
}

TEST(model_spec, turns_only_compressed_layers_by_the_scaled_rope) {
  const auto s = tiny();
  EXPECT_EQ(s.rope(0).theta, 10000);
  EXPECT_FALSE(s.rope(0).yarn);
  EXPECT_EQ(s.rope(7).theta, 160000);
  EXPECT_TRUE(s.rope(7).yarn);
  EXPECT_EQ(s.rope(7).scaling.original_max_position_embeddings, 256);
  EXPECT_FALSE(s.rope(8).yarn) << "draft layers are not scaled";
  EXPECT_EQ(s.rope(8).dims, 16);
}

TEST(engram_constants, equal_the_published_ones) {
  using row = std::vector<std::int64_t>;
  const auto real = parse_model_spec(preset("real")).value().engram;
  EXPECT_EQ(real.primes[0][0][0], 16000057);
  EXPECT_EQ(real.primes[0][2][7], 16000463);
  EXPECT_EQ(real.primes[1][0][0], 16000477);
  EXPECT_EQ(real.primes[1][2][7], 16000889);
  EXPECT_EQ(real.multipliers[0],
            (row{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(real.multipliers[1],
            (row{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
  const auto t = tiny().engram;
  EXPECT_EQ(t.primes[1], (std::vector<row>{{1039, 1049}, {1051, 1061}, {1063, 1069}}));
  EXPECT_EQ(t.multipliers[0],
            (row{14831304026200453, 936705081716061, 6959601268494069, 14319439928568407}));
  EXPECT_EQ(t.row_offsets(0), (row{0, 1009, 2022, 3041, 4062, 5093}));
}

TEST(engram_constants, hash_the_worked_example_of_the_real_model) {
  // Compressed ids 5 17 99 1234 70000, layer 1, t = 4: look-back goes backwards from 70000.
  const auto s = parse_model_spec(preset("real")).value();
  const std::int64_t ids[] = {70000, 1234, 99, 17};
  const auto& m = s.engram.multipliers[0];
  const auto offsets = s.engram.row_offsets(0);
  std::int64_t r = ids[0] * m[0];
  std::vector<std::int64_t> rows;
  for (std::size_t n = 1; n < 4; ++n) {
    r ^= ids[n] * m[n];
    for (std::size_t h = 0; h < 8; ++h)
      rows.push_back(r % s.engram.primes[0][n - 1][h] + offsets[rows.size()]);
  }
  EXPECT_EQ(rows.front(), 4331520);
  EXPECT_EQ(rows[8], 130326469);
  EXPECT_EQ(rows.back(), 373816116);
}

TEST(model_spec, reads_the_flat_spelling_alike) {
  const auto* flat = R"({
    "vocab_size": 1024, "dim": 256, "n_layers": 8, "n_heads": 8, "head_dim": 64,
    "rope_head_dim": 16, "q_lora_rank": 96, "o_groups": 4, "o_lora_rank": 32, "norm_eps": 1e-20,
    "dtype": "fp8", "scale_fmt": "ue8m0", "expert_dtype": "fp4",
    "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "rope_factor": 16,
    "original_seq_len": 256, "beta_fast": 32, "beta_slow": 1, "window_size": 16,
    "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1, 0, 0], "kv_source_layers": [1, 3, 4],
    "index_source_layers": [1, 3, 4, 6], "candidate_source_layer": 4, "candidate_topk_blocks": 4,
    "candidate_block_size": 4, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 8,
    "n_routed_experts": 16, "n_shared_experts": 1, "n_activated_experts": 4, "moe_inter_dim": 128,
    "score_func": "sqrtsoftplus", "norm_topk_prob": true, "route_scale": 1.5, "swiglu_limit": 10.0,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "engram_layer_ids": [1, 3],
    "engram_num_embeddings": [6126, 6332], "engram_max_ngram_size": 4, "engram_vocab_size": 1000,
    "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_id": 2,
    "engram_compressed_vocab_size": 512, "n_mtp_layers": 2, "dspark_block_size": 5,
    "dspark_noise_token_id": 1023, "dspark_target_layer_ids": [6, 7], "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 8, "dspark_n_activated_experts": 2})";
  const auto s = parse_model_spec(flat);
  ASSERT_TRUE(s.ok()) << s.error().render();
  const auto hf = tiny();
  EXPECT_EQ(s->hidden_size, hf.hidden_size);
  EXPECT_EQ(s->sliding_window, hf.sliding_window);
  EXPECT_EQ(s->dspark_num_experts_per_tok, hf.dspark_num_experts_per_tok);
  EXPECT_EQ(s->max_position_embeddings, 4096) << "factor times the original length";
  EXPECT_EQ(s->engram, hf.engram);
  EXPECT_TRUE(s->unknown_keys.empty());
}

TEST(model_spec, lists_keys_that_it_does_not_know) {
  const auto s = parse_model_spec(
      replaced(preset("tiny"), "\"hc_mult\": 4", "\"hc_mult\": 4, \"hc_mulch\": 4"));
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->unknown_keys, (std::vector<std::string>{"text_config.hc_mulch"}));
}

struct contradiction {
  const char *from, *to, *error;
};

TEST(model_spec, names_key_expected_and_found_of_every_contradiction) {
  const contradiction cases[] = {
      {"\"hidden_size\": 256", "\"hidden_size\": 250",
       "hidden_size: expected a multiple of 32 (block of the quantised formats), found 250"},
      {"\"hidden_size\": 256,", "", "text_config.hidden_size: expected a value, found none"},
      {"\"hidden_size\": 256", "\"hidden_size\": \"256\"",
       "text_config.hidden_size: expected an integer below 2^63, found \"256\""},
      {"\"hidden_size\": 256", "\"hidden_size\": 256, \"dim\": 128",
       "text_config.hidden_size: expected the same value as its other spelling dim (128), found "
       "256"},
      {"\"vocab_size\": 1024", "\"vocab_size\": 18446744073709551615",
       "text_config.vocab_size: expected an integer below 2^63, found 18446744073709551615"},
      {"\"o_groups\": 4", "\"o_groups\": 3",
       "o_groups: expected a divisor of num_attention_heads 8, found 3"},
      {"\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 48",
       "qk_rope_head_dim: expected an even number in 2..32 (head_dim and index_head_dim), found "
       "48"},
      {"\"quant_method\": \"fp8\"", "\"quant_method\": \"int8\"",
       "quantization_config.quant_method: expected \"fp8\", found \"int8\""},
      {"\"scoring_func\": \"sqrtsoftplus\"", "\"scoring_func\": \"sigmoid\"",
       "text_config.scoring_func: expected \"sqrtsoftplus\", found \"sigmoid\""},
      {"\"eos_token_id\": 1", "\"eos_token_id\": 1024",
       "eos_token_id: expected 0..1023, found 1024"},
      {"\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 17",
       "num_experts_per_tok: expected 1..16, found 17"},
      {"\"candidate_source_layer_id\": 4", "\"candidate_source_layer_id\": 5",
       "candidate_source_layer_id: expected one of index_source_layer_ids, found 5"},
      {"\"candidate_source_layer_id\": 4", "\"candidate_source_layer_id\": 3",
       "candidate_source_layer_id: expected the last KV source or a later layer, found 3 before KV "
       "source 4"},
      {"\"candidate_topk_blocks\": 4", "\"candidate_topk_blocks\": 2",
       "candidate_topk_blocks: expected (blocks - 1) * candidate_block_size + 1 >= index_topk 8, "
       "found 2 blocks of 4"},
      {"6126", "6127",
       "engram_num_embeddings[0]: expected 6126, the sum of the primes of layer 1, found 6127"},
      {"\"dspark_noise_token_id\": 1023", "\"dspark_noise_token_id\": 4000",
       "dspark_noise_token_id: expected 0..1023, found 4000"},
      {"\"rope_type\": \"yarn\"", "\"rope_type\": \"linear\"",
       "text_config.rope_scaling.rope_type: expected \"yarn\", found \"linear\""},
      {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true",
       "tie_word_embeddings: expected false, found true"},
      {"\"model_type\": \"deepseek_v41\"", "\"model_type\": \"deepseek_v4\"",
       "model_type: expected \"deepseek_v41\", found \"deepseek_v4\""},
  };
  const auto text = preset("tiny");
  for (const auto& c : cases)
    EXPECT_EQ(error_of(replaced(text, c.from, c.to)),
              std::string{"bad_config: config.json: "} + c.error)
        << c.from << " -> " << c.to;
}

std::string with_schedule(const std::string& ratios, const std::string& kv,
                          const std::string& index) {
  auto text = preset("tiny");
  const auto put = [&text](std::string_view key, const std::string& list) {
    const auto open = text.find('[', text.find(key));
    text.replace(open, text.find(']', open) - open + 1, list);
  };
  put("\"compress_ratios\"", ratios);
  put("\"kv_source_layer_ids\"", kv);
  put("\"index_source_layer_ids\"", index);
  return replaced(text, "\"candidate_source_layer_id\": 4", "\"candidate_source_layer_id\": -1");
}

TEST(model_spec, refuses_schedules_whose_sources_do_not_fit) {
  const std::string head = "bad_config: config.json: ";
  EXPECT_EQ(error_of(with_schedule("[0,2,2,2,1,1,1,1]", "[1,3,4]", "[1,3,4,6]")), "no error");
  EXPECT_EQ(error_of(with_schedule("[0,2,2,2,1,1,1]", "[1,3,4]", "[1,3,4,6]")),
            head + "compress_ratios: expected 8..10 entries (layers, then drafts), found 7");
  EXPECT_EQ(error_of(with_schedule("[0,2,2,2,1,1,1,1,2]", "[1,3,4]", "[1,3,4,6]")),
            head + "compress_ratios[8]: expected 0 (draft layer), found 2");
  EXPECT_EQ(error_of(with_schedule("[0,2,2,2,1,1,1,4]", "[1,3,4]", "[1,3,4,6]")),
            head
                + "compress_ratios[7]: expected 0, 1 or 2, found 4\nconfig.json: "
                  "compress_ratios[7]: expected 1, the ratio of its KV source 4, found 4");
  EXPECT_EQ(error_of(with_schedule("[0,2,2,2,2,2,2,1]", "[1,3]", "[1,3]")),
            head + "compress_ratios[7]: expected 2, the ratio of its KV source 3, found 1");
  EXPECT_EQ(error_of(with_schedule("[0,2,2,2,1,1,1,1]", "[0,1,3,4]", "[0,1,3,4]")),
            head + "compress_ratios[0]: expected 1 or 2 (the layer is a source), found 0");
  EXPECT_EQ(error_of(with_schedule("[0,2,2,2,1,1,1,1]", "[1,3,4]", "[1,4]")),
            head
                + "index_source_layer_ids: expected KV source 3 in it too\nconfig.json: "
                  "index_source_layer_ids: expected a source in layers 3..3 for layer 3, found "
                  "none");
  EXPECT_EQ(error_of(with_schedule("[0,2,2,2,1,1,1,1]", "[1,4,3]", "[1,3,4]")),
            head + "kv_source_layer_ids[2]: expected ascending layers, found 3 after 4");
  EXPECT_EQ(error_of(with_schedule("[0,2,2,2,1,1,1,1]", "[1,3,4,9]", "[1,3,4]")),
            head + "kv_source_layer_ids[3]: expected 0..7, found 9");
}

TEST(model_spec, reports_all_contradictions_at_once) {
  auto text = replaced(preset("tiny"), "\"hidden_size\": 256", "\"hidden_size\": 250");
  text = replaced(text, "\"o_groups\": 4", "\"o_groups\": 3");
  const auto e = error_of(text);
  EXPECT_NE(e.find("hidden_size"), std::string::npos);
  EXPECT_NE(e.find("\nconfig.json: o_groups"), std::string::npos);
}

TEST(model_spec, allows_window_only_models) {
  const auto s = parse_model_spec(with_schedule("[0,0,0,0,0,0,0,0]", "[]", "[]"));
  ASSERT_TRUE(s.ok()) << s.error().render();
  EXPECT_EQ(s->last_kv_source(), -1);
}

TEST(bounded_json, refuses_bad_text_by_its_place) {
  EXPECT_NE(error_of("{\"a\": ").find("bad_format: config.json: bad JSON at byte 7"),
            std::string::npos)
      << error_of("{\"a\": ");
  EXPECT_EQ(error_of("[1, 2]"), "bad_format: config.json: expected a JSON object, found array");
  EXPECT_EQ(error_of(std::string(100000, '[')),
            "bad_format: config.json: JSON nested deeper than 16 levels");
  EXPECT_NE(error_of("{\"a\": \"\xff\"}").find("bad JSON at byte 8"), std::string::npos);
  EXPECT_EQ(error_of("{\"a\": {\"b\": 1, \"b\": 2}}"),
            "duplicate: config.json: key \"b\" occurs twice in one object");
}

} // namespace
} // namespace di::engine
