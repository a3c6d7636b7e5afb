// SPDX-License-Identifier: Apache-2.0
// Any legal configuration runs, not just the presets: other stream counts, windows, ratios, head
// sizes, sources, groups that begin inside a scale tile, no Engram, no candidates. And long
// contexts.
#include "engine/model/draft_runner.hpp"
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace di::engine {
namespace {

using di::testing::test_engine;
using nlohmann::json;

std::string changed(const char* preset, const json& changes) {
  json config = json::parse(*preset_config(preset));
  for (const auto& [key, value] : changes.items())
    config["text_config"][key] = value;
  return config.dump();
}

json without_drafts_and_engram() {
  return {{"num_nextn_predict_layers", 0},
          {"dspark_block_size", 0},
          {"engram_layer_ids", json::array()},
          {"engram_num_embeddings", json::array()}};
}

std::vector<token_id> random_tokens(std::size_t count, std::int64_t vocab) {
  std::mt19937 random{3};
  std::vector<token_id> tokens(count);
  for (token_id& t : tokens)
    t = static_cast<token_id>(random() % static_cast<std::uint32_t>(vocab));
  return tokens;
}

/// Runs a configuration in one chunk and in small ones, on two implementations: same bits, finite.
void expect_it_runs(const std::string& name, const std::string& config, std::size_t count) {
  const auto model = di::testing::load_model(di::testing::synthetic_checkpoint(name, config));
  const auto tokens = random_tokens(count, model->spec().vocab_size);
  test_engine engine{*model};
  const auto whole = engine.sequence();
  const std::vector<float> expected = engine.run(*whole, tokens);
  for (const float x : expected)
    ASSERT_TRUE(std::isfinite(x)) << name;
  test_engine other{*model, 2, kernels::cpu_ops(kernels::isa::portable)};
  const auto cut = other.sequence();
  std::vector<float> found;
  for (std::size_t at = 0; at < count; at += 5) {
    const auto rows =
        other.run(*cut, std::span{tokens}.subspan(at, std::min<std::size_t>(5, count - at)));
    found.insert(found.end(), rows.begin(), rows.end());
  }
  ASSERT_EQ(expected.size(), found.size());
  EXPECT_EQ(0, std::memcmp(expected.data(), found.data(), found.size() * sizeof(float))) << name;
  EXPECT_EQ(whole->hash(), cut->hash()) << name;
}

struct draft_bits {
  std::vector<token_id> drafts;
  std::vector<float> logits, confidences;
  std::uint64_t ring = 0;
};

/// One greedy draft pass behind `tokens`, run and fed in chunks.
draft_bits draft_behind(test_engine& engine, std::span<const token_id> tokens, std::size_t chunk) {
  const auto drafts = make_draft_runner(engine.model, engine.ops, *engine.stream);
  engine.steps->want_taps(true);
  const auto sequence = engine.sequence();
  for (std::size_t at = 0; at < tokens.size(); at += chunk) {
    engine.run(*sequence, tokens.subspan(at, std::min(chunk, tokens.size() - at)));
    const draft_feed rows{sequence.get(), static_cast<std::int64_t>(at), engine.steps->taps(0)};
    EXPECT_TRUE(drafts->feed({&rows, 1}).ok());
  }
  const draft_segment segment{sequence.get(), tokens.front()};
  auto state = drafts->start({&segment, 1});
  while (state.ok() && *state == step_state::needs_experts) {
    EXPECT_TRUE(engine.loop.answer(drafts->demand()).ok());
    state = drafts->resume();
  }
  EXPECT_TRUE(state.ok());
  draft_bits out;
  const auto drawn =
      drafts->draw([&](std::size_t, std::size_t, std::span<const float> row) -> result<token_id> {
        out.logits.insert(out.logits.end(), row.begin(), row.end());
        return static_cast<token_id>(std::max_element(row.begin(), row.end()) - row.begin());
      });
  EXPECT_TRUE(drawn.ok());
  out.drafts.assign(drafts->drafts(0).begin(), drafts->drafts(0).end());
  out.confidences.assign(drafts->confidences(0).begin(), drafts->confidences(0).end());
  out.ring = sequence->draft_hash();
  return out;
}

/// Drafts of a configuration: the same bits in any chunks, on all instruction sets.
void expect_it_drafts(const std::string& name, const std::string& config, std::size_t block) {
  const auto model = di::testing::load_model(di::testing::synthetic_checkpoint(name, config));
  const auto tokens = random_tokens(37, model->spec().vocab_size - 1);
  test_engine engine{*model};
  const draft_bits expected = draft_behind(engine, tokens, tokens.size());
  EXPECT_EQ(expected.drafts.size(), block);
  EXPECT_EQ(expected.confidences.size(), block);
  for (const float x : expected.logits)
    ASSERT_TRUE(std::isfinite(x)) << name;
  for (const auto isa : {kernels::isa::portable, kernels::isa::avx2, kernels::isa::avx512}) {
    if (!kernels::isa_available(isa))
      continue;
    test_engine other{*model, 2, kernels::cpu_ops(isa)};
    const draft_bits found = draft_behind(other, tokens, 7);
    EXPECT_EQ(found.drafts, expected.drafts) << name;
    EXPECT_EQ(found.ring, expected.ring) << name;
    ASSERT_EQ(found.logits.size(), expected.logits.size());
    EXPECT_EQ(0, std::memcmp(found.logits.data(), expected.logits.data(),
                             found.logits.size() * sizeof(float)))
        << name;
    EXPECT_EQ(0, std::memcmp(found.confidences.data(), expected.confidences.data(),
                             found.confidences.size() * sizeof(float)))
        << name;
  }
}

TEST(legal_config, drafts_of_one_layer_one_tap_and_a_block_of_two) {
  expect_it_drafts("odd_one_draft_layer",
                   changed("tiny", {{"num_nextn_predict_layers", 1},
                                    {"compress_ratios", {0, 2, 2, 2, 1, 1, 1, 1, 0}},
                                    {"dspark_block_size", 2},
                                    {"dspark_target_layer_ids", {7}},
                                    {"dspark_markov_rank", 24},
                                    {"dspark_n_routed_experts", 3},
                                    {"dspark_num_experts_per_tok", 3}}),
                   2);
}

TEST(legal_config, drafts_of_three_layers_four_taps_and_a_block_of_seven) {
  expect_it_drafts("odd_three_draft_layers",
                   changed("tiny", {{"num_nextn_predict_layers", 3},
                                    {"compress_ratios", {0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0}},
                                    {"dspark_block_size", 7},
                                    {"dspark_target_layer_ids", {0, 2, 6, 7}},
                                    {"sliding_window", 70},
                                    {"dspark_markov_rank", 100}}),
                   7);
}

TEST(legal_config, drafts_over_two_streams_and_groups_inside_a_tile) {
  expect_it_drafts("odd_draft_streams",
                   changed("tiny", {{"hc_mult", 2}, {"o_groups", 2}, {"o_lora_rank", 48}}), 5);
}

/// The shape of a public unit test: five layers, two streams, window 8, groups of 16 rows.
TEST(legal_config, two_streams_window_eight_and_groups_inside_a_tile) {
  json c = without_drafts_and_engram();
  c.update({{"num_hidden_layers", 5},
            {"compress_ratios", {0, 2, 2, 1, 1}},
            {"hidden_size", 64},
            {"num_attention_heads", 4},
            {"head_dim", 32},
            {"qk_rope_head_dim", 8},
            {"q_lora_rank", 32},
            {"o_groups", 2},
            {"o_lora_rank", 16},
            {"sliding_window", 8},
            {"n_routed_experts", 4},
            {"num_experts_per_tok", 2},
            {"moe_intermediate_size", 32},
            {"hc_mult", 2},
            {"hc_sinkhorn_iters", 3},
            {"index_n_heads", 2},
            {"index_head_dim", 32},
            {"index_topk", 2},
            {"candidate_topk_blocks", 4},
            {"candidate_block_size", 4},
            {"vocab_size", 128},
            {"kv_source_layer_ids", {1, 3}},
            {"index_source_layer_ids", {1, 3, 4}},
            {"candidate_source_layer_id", 3}});
  json config = json::parse(changed("tiny", c));
  config["image_token_id"] = 100;
  expect_it_runs("odd_two_streams", config.dump(), 61);
}

TEST(legal_config, only_window_layers) {
  json c = without_drafts_and_engram();
  c.update({{"num_hidden_layers", 3},
            {"compress_ratios", {0, 0, 0}},
            {"kv_source_layer_ids", json::array()},
            {"index_source_layer_ids", json::array()},
            {"candidate_source_layer_id", -1}});
  expect_it_runs("odd_window_only", changed("tiny", c), 50);
}

TEST(legal_config, no_candidate_level_and_one_group) {
  json c = without_drafts_and_engram();
  c.update({{"compress_ratios", {0, 2, 2, 2, 1, 1, 1, 1}},
            {"candidate_source_layer_id", -1},
            {"o_groups", 1},
            {"o_lora_rank", 96}});
  expect_it_runs("odd_no_candidates", changed("tiny", c), 70);
}

TEST(legal_config, pairs_all_the_way_and_one_stream) {
  json c = without_drafts_and_engram();
  c.update({{"hc_mult", 1},
            {"num_hidden_layers", 4},
            {"compress_ratios", {2, 2, 2, 2}},
            {"kv_source_layer_ids", {0, 2}},
            {"index_source_layer_ids", {0, 2, 3}},
            {"candidate_source_layer_id", 2}});
  expect_it_runs("odd_pairs", changed("tiny", c), 75);
}

TEST(long_context, four_thousand_positions_in_chunks_stay_exact_and_small) {
  const auto model = di::testing::load_model(di::testing::preset_checkpoint("tiny"));
  const auto tokens = random_tokens(4096, model->spec().vocab_size);
  test_engine engine{*model};
  const auto run = [&](std::size_t chunk, logits_wanted wanted) {
    auto sequence = engine.sequence();
    for (std::size_t at = 0; at < tokens.size(); at += chunk) {
      step_segment segment;
      segment.sequence = sequence.get();
      segment.first_position = static_cast<std::uint32_t>(at);
      segment.tokens = std::span{tokens}.subspan(at, std::min(chunk, tokens.size() - at));
      segment.logits = wanted;
      EXPECT_TRUE(engine.loop.run({&segment, 1}).ok());
    }
    return sequence;
  };
  const auto large = run(1024, logits_wanted::last);
  const auto logits = engine.steps->logits(0);
  const std::vector<float> expected{logits.begin(), logits.end()};
  EXPECT_EQ(large->length(), 4096);
  // Packed formats, spec 4.1: 36 + 17 bytes an entry, 2.5 entries for two tokens of three sources.
  EXPECT_EQ(large->pages().size() * engine.layout.page_bytes, 4096u * 106u);
  EXPECT_EQ(engine.pool->pages() - engine.pool->free_pages(), large->pages().size());
  const auto small = run(100, logits_wanted::last);
  EXPECT_EQ(large->hash(), small->hash());
  const auto again = engine.steps->logits(0);
  ASSERT_EQ(again.size(), expected.size());
  EXPECT_EQ(0, std::memcmp(again.data(), expected.data(), expected.size() * sizeof(float)));
  // The context ends here.
  step_segment segment;
  segment.sequence = large.get();
  segment.first_position = 4096;
  segment.tokens = std::span{tokens}.first(1);
  EXPECT_EQ(engine.steps->start({&segment, 1}).error().code, ec::context_exceeded);
}

} // namespace
} // namespace di::engine
