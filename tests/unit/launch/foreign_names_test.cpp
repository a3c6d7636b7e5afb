// SPDX-License-Identifier: Apache-2.0
// DeepInfer's switches: each becomes a key, a message or a refusal, and keeps its name in errors.
#include "launch/explain.hpp"
#include "launch/foreign_names.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

namespace di::launch {
namespace {

using variables = std::vector<std::pair<std::string, std::string>>;

foreign_switches of(const variables& v) {
  return read_foreign(v);
}

using texts = std::vector<std::string>;

} // namespace

TEST(foreign_names, is_sorted_and_names_keys_that_exist) {
  const auto rows = foreign_names();
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
  for (const auto& r : rows) {
    EXPECT_EQ(r.key.empty(), r.kind != foreign_kind::key) << r.name;
    EXPECT_TRUE(r.key.empty() || find_key(r.key)) << r.name;
    EXPECT_FALSE(r.doc.empty()) << r.name;
  }
}

TEST(foreign_names, leaves_an_environment_without_them_alone) {
  const auto out = of({{"PATH", "/bin"}, {"DEEPINFER", "1"}, {"XDEEPINFER_ACCELERATOR", "1"}});
  EXPECT_TRUE(out.sets.empty() && out.notes.empty() && out.problems.empty());
}

TEST(foreign_names, maps_drafts_and_variable_lengths_to_speculation) {
  const auto speculation = [](const variables& v) {
    const auto out = of(v);
    EXPECT_TRUE(out.problems.empty());
    EXPECT_LE(out.sets.size(), 1U);
    return out.sets.empty() ? "" : out.sets[0];
  };
  const std::string n = "DEEPINFER_USE_NEXTN_DECODE", varlen = "DEEPINFER_ENABLE_MTP_VARLEN";
  const std::string key = "roles.decode.speculation=";
  EXPECT_EQ(speculation({{n, "5"}}), key + "fixed:5");
  EXPECT_EQ(speculation({{n, "0"}}), key + "off");
  EXPECT_EQ(speculation({{varlen, "1"}}), key + "varlen");
  EXPECT_EQ(speculation({{varlen, "False"}}), "");
  EXPECT_EQ(speculation({{n, "3"}, {varlen, "true"}}), key + "varlen");
  EXPECT_EQ(speculation({{n, "3"}, {varlen, "0"}}), key + "fixed:3");
  EXPECT_EQ(speculation({{n, "0"}, {varlen, "1"}}), key + "off");
}

TEST(foreign_names, maps_every_other_switch_that_has_a_key) {
  const auto out = of({{"DEEPINFER_BATCH_INVARIANT", "1"},
                       {"DEEPINFER_CPP_LOG_LEVEL", "warn"},
                       {"DEEPINFER_EXPERT_COUNT_WINDOW_SIZE", "100"},
                       {"DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL", "3000"},
                       {"DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS", "64"},
                       {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", "140"},
                       {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "compact"},
                       {"DEEPINFER_ZERO_OVERHEAD_SCHEDULING", "0"}});
  EXPECT_EQ(out.problems, texts{});
  EXPECT_EQ(out.sets,
            (texts{"determinism.batch_invariant=true", "log.level=warn",
                   "roles.decode.rebalance_window=100", "roles.decode.rebalance_interval=3000",
                   "roles.decode.redundant_experts=64", "roles.decode.prefill_keep=140",
                   "roles.decode.prefill=compact", "roles.decode.steps_in_flight=1"}));
  EXPECT_EQ(out.origins.size(), out.sets.size());
  EXPECT_EQ(out.notes.at(1), "DEEPINFER_CPP_LOG_LEVEL=warn: sets log.level to warn");
  EXPECT_EQ(of({{"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", "140"}}).notes,
            texts{"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS=140: no effect: only with "
                  "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE=compact"});
}

TEST(foreign_names, says_what_has_no_effect_and_refuses_what_shows_in_answers) {
  EXPECT_EQ(of({{"DEEPINFER_NCCL_NUM_SMS", "16"}}).notes,
            texts{"DEEPINFER_NCCL_NUM_SMS=16: no effect: there is no NCCL"});
  EXPECT_EQ(of({{"DEEPINFER_SAMPLER_FORCE_TOPK", "50"}}).problems,
            texts{"DEEPINFER_SAMPLER_FORCE_TOPK=50: not part of this build: write top_k in the "
                  "prompt lines"});
  EXPECT_EQ(
      of({{"DEEPINFER_SAMPLER_FORCE_TOPK", "0"}, {"DEEPINFER_ENGRAM_PAD_TOKEN", "2"}}).problems,
      texts{});
  EXPECT_EQ(of({{"DEEPINFER_ENGRAM_PAD_TOKEN", "3"}}).problems.size(), 1U);
}

TEST(foreign_names, finds_wrong_names_and_values) {
  EXPECT_EQ(of({{"DEEPINFER_USE_NEXTN_DECOD", "5"}}).problems,
            texts{"DEEPINFER_USE_NEXTN_DECOD=5: not a name that DeepInfer knows; did you mean "
                  "DEEPINFER_USE_NEXTN_DECODE?"});
  EXPECT_EQ(of({{"DEEPINFER_USE_NEXTN_DECODE", "five"}}).problems,
            texts{"DEEPINFER_USE_NEXTN_DECODE=five: expected a whole number from 0 to 16"});
  EXPECT_EQ(of({{"DEEPINFER_USE_NEXTN_DECODE", "17"}}).problems.size(), 1U);
  EXPECT_EQ(of({{"DEEPINFER_USE_NEXTN_DECODE", ""}}).problems.size(), 1U);
  EXPECT_EQ(of({{"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "mask"}}).problems,
            texts{"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE=mask: not part of this build; off and "
                  "compact are"});
  EXPECT_EQ(of({{"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "x"}}).problems.size(), 1U);
  EXPECT_EQ(of({{"DEEPINFER_CPP_LOG_LEVEL", "debug"}}).problems.size(), 1U);
  EXPECT_EQ(of({{"DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS", "-1"}}).problems.size(), 1U);
}

TEST(foreign_names, stands_between_the_file_and_set) {
  const std::string file = DI_SOURCE_DIR "/launch/topologies/local1.yaml";
  const auto env = of({{"DEEPINFER_USE_NEXTN_DECODE", "3"}});
  texts all;
  EXPECT_EQ(load_topology(file, env, {}, all)->speculation, "fixed:3");
  EXPECT_EQ(all, texts{"roles.decode.speculation=fixed:3"});
  EXPECT_EQ(load_topology(file, env, {"roles.decode.speculation=off"}, all)->speculation, "off");
  EXPECT_EQ(all.size(), 2U);
  EXPECT_EQ(load_topology(file, of({}), {}, all)->speculation, load_topology(file)->speculation);
}

TEST(foreign_names, keeps_the_switch_in_errors_of_its_key) {
  const std::string file = DI_SOURCE_DIR "/launch/topologies/local1.yaml";
  const auto env = of({{"DEEPINFER_SAMPLER_FORCE_TOPK", "1"},
                       {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "compact"},
                       {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", "9"}});
  texts all;
  const auto out = load_topology(file, env, {"roles.decode.prefill=full", "kv.prefix=on"}, all);
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.error().code, ec::bad_config);
  EXPECT_EQ(out.error().what,
            "DEEPINFER_SAMPLER_FORCE_TOPK=1: not part of this build: write top_k in the prompt "
            "lines\n"
            "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS=9: roles.decode.prefill_keep is 9, but "
            "roles.decode.prefill is full; write prefill: compact\n"
            "--set kv.prefix=on: kv.prefix: on is not known; choose off, exact, bounded");
}

TEST(foreign_names, explains_itself) {
  EXPECT_EQ(explain("DEEPINFER_USE_NEXTN_DECODE").value(),
            "DEEPINFER_USE_NEXTN_DECODE (a switch of DeepInfer)\n  sets "
            "`roles.decode.speculation`: 0: off; N: fixed:N, or varlen with "
            "DEEPINFER_ENABLE_MTP_VARLEN\n");
  EXPECT_EQ(explain("DEEPINFER_NCCL_NUM_SM").error().what,
            "DeepInfer has no switch DEEPINFER_NCCL_NUM_SM; did you mean DEEPINFER_NCCL_NUM_SMS?");
  EXPECT_NE(explain("roles.decode.speculation").value().find("DEEPINFER_ENABLE_MTP_VARLEN"),
            std::string::npos);
}

} // namespace di::launch
