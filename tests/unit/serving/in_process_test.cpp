// SPDX-License-Identifier: Apache-2.0
// Whole batches through real actors in one process: the same bytes at any number of ranks.
#include "tests/support/serving_cluster.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace di::test {
namespace {

using json = nlohmann::json;

const test_model& demo() {
  static const test_model loaded = test_model::load(DI_SOURCE_DIR "/launch/models/demo").value();
  return loaded;
}

/// Output lines without what may differ from run to run.
std::vector<json> answers(const batch_outcome& outcome) {
  std::vector<json> all;
  for (const std::string& line : outcome.lines) {
    json one = json::parse(line);
    one.erase("timings");
    if (one.contains("choices"))
      for (json& choice : one["choices"])
        choice.erase("timings");
    all.push_back(std::move(one));
  }
  return all;
}

std::string chat(const std::string& text) {
  return "<｜begin▁of▁sentence｜><｜User｜>" + text + "<｜Assistant｜></think>";
}

std::string mixed_prompts() {
  std::string lines;
  const auto add = [&](json line) { lines += line.dump() + "\n"; };
  add({{"id", "greet"},
       {"prompt", chat("Hello!")},
       {"special_tokens", true},
       {"temperature", 0},
       {"max_tokens", 40}});
  add({{"id", "sum"},
       {"prompt", chat("What is 12 + 30?")},
       {"special_tokens", true},
       {"temperature", 0},
       {"max_tokens", 24},
       {"logprobs", 3}});
  add({{"id", "seeded"},
       {"prompt", "The name of the"},
       {"temperature", 1.3},
       {"top_p", 0.9},
       {"seed", 42},
       {"max_tokens", 30},
       {"n", 3},
       {"ignore_eos", true}});
  add({{"id", "penalties"},
       {"prompt", chat("Count from 1 to 9.")},
       {"special_tokens", true},
       {"seed", 5},
       {"frequency_penalty", 0.7},
       {"presence_penalty", 0.2},
       {"repetition_penalty", 1.1},
       {"top_k", 20},
       {"max_tokens", 25}});
  std::string longer;
  for (int i = 0; i < 60; ++i)
    longer += "one two three four five " + std::to_string(i) + " ";
  add({{"id", "long"}, {"prompt", longer}, {"temperature", 0}, {"max_tokens", 12}});
  add({{"id", "forced"},
       {"prompt_ids", {5, 6, 7}},
       {"forced_ids", {9, 10, 11, 12}},
       {"max_tokens", 6},
       {"temperature", 0},
       {"logprobs", 0},
       {"ignore_eos", true}});
  add({{"id", "one"}, {"prompt_ids", {7}}, {"max_tokens", 9}, {"seed", 3}, {"ignore_eos", true}});
  return lines;
}

TEST(serving, answers_the_same_bytes_at_any_rank_count) {
  const std::string prompts = mixed_prompts();
  std::vector<json> first;
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U, 5U, 7U, 8U}) {
    cluster_options options;
    options.ranks = ranks;
    options.redundant = ranks == 3 ? 5 : 0;
    options.step_rows = ranks == 2 ? 17 : 256;
    options.prefill_rows = ranks == 3 ? 3 : 0;
    options.steps_in_flight = ranks % 3 == 1 ? 1 : 2;
    const batch_outcome outcome = run_batch(demo(), prompts, options);
    ASSERT_TRUE(outcome.finished) << "no end at " << ranks << " ranks, " << outcome.lines.size()
                                  << " lines";
    EXPECT_EQ(outcome.finished->failed, 0U);
    const auto got = answers(outcome);
    ASSERT_EQ(got.size(), 7U);
    EXPECT_EQ(got[0]["finish_reason"], "stop");
    EXPECT_EQ(got[0]["text"], "Hello! How can I help you?");
    EXPECT_EQ(got[1]["text"], "12 + 30 = 42");
    if (first.empty()) {
      first = got;
      continue;
    }
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i].dump(), first[i].dump()) << "at " << ranks << " ranks";
  }
  EXPECT_EQ(first[5]["ids"][0], 9);
  EXPECT_EQ(first[5]["ids"][3], 12);
  EXPECT_EQ(first[5]["ids"].size(), 6U);
  EXPECT_EQ(first[1]["logprobs"].size(), first[1]["ids"].size());
}

TEST(serving, answers_the_same_bytes_with_drafts) {
  const std::string prompts = mixed_prompts();
  const auto plain = answers(run_batch(demo(), prompts, {}));
  ASSERT_EQ(plain.size(), 7U);
  for (const char* speculation : {"fixed:5", "fixed:2", "varlen"})
    for (const std::uint32_t ranks : {1U, 3U}) {
      SCOPED_TRACE(fmt::format("{} at {} ranks", speculation, ranks));
      cluster_options options;
      options.ranks = ranks;
      options.speculation = speculation;
      options.steps_in_flight = ranks == 1 ? 1 : 2;
      options.step_rows = ranks == 3 ? 24 : 256;
      options.step_ms = ranks == 3 ? 2 : 0;
      options.profile_ms = ranks == 3 ? 40 : 0; // of varlen only
      const batch_outcome outcome = run_batch(demo(), prompts, options);
      ASSERT_TRUE(outcome.finished);
      EXPECT_EQ(outcome.finished->failed, 0U);
      const auto got = answers(outcome);
      ASSERT_EQ(got.size(), plain.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(got[i].dump(), plain[i].dump());
      EXPECT_FALSE(outcome.counters.contains("di_rank_draft_passes_failed_total"));
      const auto accepted = outcome.counters.find("di_rank_drafts_accepted_total");
      ASSERT_NE(accepted, outcome.counters.end());
      EXPECT_GT(accepted->second, 20);
      for (const char* what : {"verified", "accepted"}) {
        double sum = 0;
        for (int k = 1; k <= 5; ++k)
          if (const auto at =
                  outcome.counters.find(fmt::format("di_rank_drafts_{}_{}_total", k, what));
              at != outcome.counters.end())
            sum += at->second;
        EXPECT_EQ(sum, outcome.counters.at(fmt::format("di_rank_drafts_{}_total", what))) << what;
      }
      std::cout << speculation << ": " << accepted->second << " of "
                << outcome.counters.at("di_rank_drafts_verified_total") << " drafts accepted in "
                << outcome.counters.at("di_rank_steps_total") << " steps\n";
    }
}

TEST(serving, answers_the_same_bytes_while_experts_move) {
  const std::string prompts = mixed_prompts();
  const auto wanted = answers(run_batch(demo(), prompts, {}));
  for (const char* how : {"forced:1", "forced:3", "auto"})
    for (const std::uint32_t ranks : {2U, 5U}) {
      cluster_options options;
      options.ranks = ranks;
      options.redundant = ranks == 2 ? 0 : 7;
      options.prefill_rows = 16;
      options.rebalance = engine::parse_rebalance(how).value();
      options.rebalance.epoch_moves = ranks == 2 ? 1 : 64; // one layer after the other
      if (options.rebalance.mode == engine::rebalance_mode::automatic) {
        options.rebalance.window_steps = options.rebalance.interval_steps = 4;
        options.rebalance.gain_min = 0.001;
        options.rebalance.begin_above = options.rebalance.end_below = 1;
      }
      const batch_outcome outcome = run_batch(demo(), prompts, options);
      ASSERT_TRUE(outcome.finished) << how << " at " << ranks << " ranks does not end";
      const auto got = answers(outcome);
      ASSERT_EQ(got.size(), wanted.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(got[i].dump(), wanted[i].dump()) << how << " at " << ranks << " ranks";
      const auto counted = [&](const char* name) {
        const auto at = outcome.counters.find(name);
        return at == outcome.counters.end() ? 0.0 : at->second;
      };
      EXPECT_GT(counted("di_rebalancer_slots_loaded_total"), 10) << how << " moved nothing";
      EXPECT_GT(counted("di_expert_shard_slots_released_total"), 10) << how;
      EXPECT_EQ(counted("di_rank_calls_moved_total"), 0) << how << ": a slot was freed too early";
    }
}

/// Prompts that begin alike, some asked for twice, one after the other or together.
std::string shared_prompts(const char* prefix, const char* prefill) {
  std::string common;
  for (int i = 0; i < 40; ++i)
    common += "one two three four five " + std::to_string(i) + " ";
  std::string lines;
  for (int i = 0; i < 14; ++i) {
    json line{{"id", i},
              {"prompt", common + std::string(static_cast<std::size_t>(i % 5), 'x')},
              {"max_tokens", 12 + i},
              {"ignore_eos", true},
              {"prefix", prefix},
              {"prefill", prefill},
              {"logprobs", 1},
              {"n", 1 + i % 3}};
    if (i % 2)
      line["seed"] = i;
    else
      line["temperature"] = 0;
    lines += line.dump() + "\n";
  }
  return lines;
}

TEST(serving, answers_the_same_bytes_behind_cached_prefixes) {
  for (const char* prefill : {"full", "compact"}) {
    cluster_options options;
    options.window = 1;
    const auto cold = answers(run_batch(demo(), shared_prompts("off", prefill), options));
    ASSERT_EQ(cold.size(), 14U);
    for (const std::uint64_t snapshots : {0U, 64U << 20})
      for (const std::uint32_t pages : {64U, 16U})
        for (const std::uint32_t ranks : {1U, 2U}) {
          SCOPED_TRACE(fmt::format("{} {} {} pages, {} ranks", prefill, snapshots, pages, ranks));
          options.ranks = ranks;
          options.pages = pages;
          options.snapshot_bytes = snapshots;
          options.speculation = ranks == 1 ? "off" : "varlen";
          options.window = ranks == 1 ? 3 : 64;
          const batch_outcome outcome =
              run_batch(demo(), shared_prompts("exact", prefill), options);
          ASSERT_TRUE(outcome.finished);
          const auto got = answers(outcome);
          ASSERT_EQ(got.size(), cold.size());
          for (std::size_t i = 0; i < got.size(); ++i)
            EXPECT_EQ(got[i].dump(), cold[i].dump());
          const auto count = [&](std::string_view name) {
            const auto at = outcome.counters.find(name);
            return at == outcome.counters.end() ? 0.0 : at->second;
          };
          // Who comes together has nothing to hit yet; without snapshots all rows are run again.
          if (ranks == 1) {
            EXPECT_GT(count("di_rank_prefix_hits_total"), 10);
            EXPECT_EQ(count("di_rank_prefix_rows_total") > 0, snapshots > 0);
          }
          std::cout << prefill << ", " << snapshots << " bytes, " << pages << " pages, " << ranks
                    << " ranks: " << count("di_rank_prefix_hits_total") << " hits, "
                    << count("di_rank_prefix_tokens_total") << " tokens, "
                    << count("di_rank_prefix_rows_total") << " rows, "
                    << count("di_rank_forks_total") << " forks, "
                    << count("di_rank_preemptions_total") << " preempted\n";
        }
  }
}

TEST(serving, keeps_order_and_reports_bad_lines) {
  std::string prompts = "{\"id\": 1, \"prompt\": \"a b\", \"max_tokens\": 20, \"seed\": 1}\n"
                        "\n"
                        "{\"id\": 2, \"prompt\": 5}\n"
                        "not json\n"
                        "{\"id\": 3, \"prompt\": \"c\", \"max_tokens\": 1, \"temperature\": 0}\n"
                        "{\"id\": 4, \"prompt\": \"c\", \"max_tokens\": 100000000}\n";
  cluster_options options;
  options.ranks = 2;
  const auto outcome = run_batch(demo(), prompts, options);
  ASSERT_TRUE(outcome.finished);
  EXPECT_EQ(outcome.finished->failed, 3U);
  const auto got = answers(outcome);
  ASSERT_EQ(got.size(), 5U);
  EXPECT_EQ(got[0]["id"], 1);
  EXPECT_EQ(got[1]["line"], 3);
  EXPECT_EQ(got[1]["error"]["message"], "line 3: prompt: expected a string, found number");
  EXPECT_EQ(got[2]["id"], nullptr); // it has none that could be read
  EXPECT_EQ(got[2]["line"], 4);
  EXPECT_EQ(got[2]["error"]["code"], "bad_format");
  EXPECT_EQ(got[3]["ids"].size(), 1U);
  EXPECT_EQ(got[4]["error"]["code"], "context_exceeded");
}

TEST(serving, serves_more_requests_than_fit_at_once) {
  std::string prompts;
  for (int i = 0; i < 40; ++i)
    prompts +=
        json{{"id", i}, {"prompt", "number " + std::to_string(i)}, {"max_tokens", 8}, {"seed", i}}
            .dump()
        + "\n";
  cluster_options small;
  small.ranks = 2;
  small.pages = 3; // three sequences at a time
  small.window = 16;
  const auto tight = run_batch(demo(), prompts, small);
  ASSERT_TRUE(tight.finished);
  EXPECT_EQ(tight.finished->failed, 0U);
  cluster_options roomy;
  const auto wide = run_batch(demo(), prompts, roomy);
  EXPECT_EQ(answers(tight), answers(wide));
}

/// Index of the first step whose best two logits were so close that another order is no mistake.
std::size_t certain_tokens(const json& golden) {
  const auto& margins = golden["margin"];
  std::size_t n = 0;
  while (n < margins.size() && margins[n].get<double>() > 0.75)
    ++n;
  return n;
}

TEST(serving, agrees_with_the_reference_on_the_demo_prompts) {
  std::ifstream file{DI_SOURCE_DIR "/launch/models/demo/golden.json"};
  const json golden = json::parse(file);
  std::string prompts;
  for (const json& one : golden["cases"])
    prompts += json{{"prompt", one["prompt"]},
                    {"special_tokens", true},
                    {"temperature", 0},
                    {"max_tokens", one["tokens"].size()}}
                   .dump()
               + "\n";
  cluster_options options;
  options.ranks = 3;
  options.pages = 512;
  const auto outcome = run_batch(demo(), prompts, options, std::chrono::seconds{200});
  ASSERT_TRUE(outcome.finished);
  const auto got = answers(outcome);
  ASSERT_EQ(got.size(), golden["cases"].size());
  std::size_t whole = 0, steps = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const json& wanted = golden["cases"][i];
    EXPECT_EQ(got[i]["prompt_tokens"], wanted["prompt_ids"].size());
    const std::size_t n = certain_tokens(wanted);
    for (std::size_t k = 0; k < n; ++k)
      ASSERT_EQ(got[i]["ids"][k], wanted["tokens"][k]) << "prompt " << i << " token " << k;
    steps += n;
    if (n < wanted["tokens"].size())
      continue;
    ++whole;
    EXPECT_EQ(got[i]["text"], wanted["text"]) << i;
    EXPECT_EQ(got[i]["finish_reason"], wanted["finish"]) << i;
  }
  EXPECT_GE(whole, got.size() / 2);
  EXPECT_GT(steps, 700U);
}

} // namespace
} // namespace di::test
