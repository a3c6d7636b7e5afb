// SPDX-License-Identifier: Apache-2.0
// The workload of `dilaunch bench` and the numbers made of its answers.
#include "launch/bench_work.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>
#include <sstream>

namespace di::launch {
namespace {

using nlohmann::json;

bench_options small() {
  bench_options o;
  o.batches = {1, 2};
  o.speculations = {"off", "varlen"};
  o.rounds = 2;
  o.output_tokens = 4;
  return o;
}

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);)
    lines.push_back(json::parse(line));
  return lines;
}

TEST(bench_work, compares_the_same_requests_in_turning_order) {
  const auto work = make_bench_work(small());
  const auto lines = lines_of(work.lines);
  ASSERT_EQ(work.phases.size(), 2U + 2 * 2 * 2);
  ASSERT_EQ(lines.size(), 2U * 8 + 2 * (1 + 2) * 2);
  std::vector<std::size_t> turns;
  std::size_t at = 0;
  std::vector<std::vector<json>> phases;
  for (const bench_phase& p : work.phases) {
    turns.push_back(p.speculation);
    auto& mine = phases.emplace_back();
    for (std::uint32_t i = 0; i < p.batch; ++i, ++at) {
      EXPECT_EQ(lines[at].at("phase"), phases.size() - 1);
      EXPECT_EQ(lines[at].at("speculation"), p.speculation ? "varlen" : "off");
      EXPECT_TRUE(lines[at].at("ignore_eos"));
      json bare = lines[at];
      for (const char* key : {"id", "phase", "speculation"})
        bare.erase(key);
      mine.push_back(std::move(bare));
    }
  }
  EXPECT_EQ(turns, (std::vector<std::size_t>{0, 1, 0, 1, 0, 1, 1, 0, 1, 0}));
  for (std::size_t p = 2; p < phases.size(); p += 2)
    EXPECT_EQ(phases[p], phases[p + 1]);
  EXPECT_NE(phases[2], phases[6]);
  EXPECT_EQ(make_bench_work(small()).lines, work.lines);
  auto other = small();
  other.seed = 2;
  EXPECT_NE(make_bench_work(other).lines, work.lines);
}

TEST(bench_work, draws_random_ids_within_the_vocabulary) {
  auto o = small();
  o.prompt_tokens = 50;
  o.vocab = 7;
  std::set<int> seen;
  for (const json& line : lines_of(make_bench_work(o).lines)) {
    ASSERT_EQ(line.at("prompt_ids").size(), 50U);
    EXPECT_FALSE(line.contains("prompt"));
    for (const json& id : line.at("prompt_ids"))
      seen.insert(id.get<int>());
  }
  EXPECT_EQ(seen, (std::set<int>{0, 1, 2, 3, 4, 5, 6}));
}

/// Answers with tokens 10 ms apart from 5 ms on; two at a time every 10 ms with speculation.
std::string answers_of(const bench_work& work) {
  std::string out;
  double clock = 0;
  for (const bench_phase& p : work.phases) {
    for (std::uint32_t i = 0; i < p.batch; ++i) {
      const json at = p.speculation ? json{clock + 5, clock + 5, clock + 15, clock + 15}
                                    : json{clock + 5, clock + 15, clock + 25, clock + 35};
      out += json{{"timings", {{"submitted_ms", clock}, {"token_ms", at}}}}.dump() + "\n";
    }
    clock += 1'000;
  }
  return out;
}

TEST(bench_work, measures_rates_first_tokens_and_gaps) {
  const auto o = small();
  const auto work = make_bench_work(o);
  const auto cases = read_bench(o, work, answers_of(work));
  ASSERT_TRUE(cases.ok()) << cases.error().what;
  ASSERT_EQ(cases->size(), 4U);
  const bench_case& off = (*cases)[0];
  EXPECT_EQ(off.batch, 1U);
  EXPECT_EQ(off.speculation, "off");
  EXPECT_EQ(off.tokens, 8U);
  EXPECT_NEAR(off.tokens_per_s, 4 / 0.035, 1e-6);
  EXPECT_EQ(off.rounds.size(), 2U);
  EXPECT_NEAR(off.first_p50_ms, 5, 1e-9);
  EXPECT_NEAR(off.gap_p50_ms, 10, 1e-9);
  const bench_case& varlen = (*cases)[3];
  EXPECT_EQ(varlen.batch, 2U);
  EXPECT_EQ(varlen.tokens, 16U);
  EXPECT_NEAR(varlen.tokens_per_s, 8 / 0.015, 1e-6);
  EXPECT_NEAR(varlen.gap_p99_ms, 5, 1e-9); // 10 ms for two
  const auto report = json::parse(bench_json(o, *cases, R"("ranks": 4)"));
  EXPECT_EQ(report.at("ranks"), 4);
  EXPECT_EQ(report.at("cases").size(), 4U);
  ASSERT_EQ(report.at("gain").size(), 2U);
  EXPECT_NEAR(report.at("gain")[0].at("tokens_per_s").get<double>(), 35.0 / 15, 1e-3);
}

TEST(bench_work, says_which_answer_is_wrong) {
  const auto o = small();
  const auto work = make_bench_work(o);
  const std::string good = answers_of(work);
  const auto what = [&](const std::string& text) {
    const auto cases = read_bench(o, work, text);
    return cases.ok() ? std::string{} : cases.error().what;
  };
  EXPECT_NE(what("{\"error\":{\"code\":\"unavailable\"}}\n" + good).find("answer 1: {\"code\""),
            std::string::npos);
  EXPECT_NE(what(good.substr(0, good.find('\n') + 1)).find("answer 2: "), std::string::npos);
  std::string shorter = good;
  shorter.replace(shorter.find("5.0,15.0,"), 9, "5.0,");
  EXPECT_EQ(what(shorter), "answer 1: 3 tokens, not 4");
}

} // namespace
} // namespace di::launch
