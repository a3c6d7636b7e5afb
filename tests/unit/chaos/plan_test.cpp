// SPDX-License-Identifier: Apache-2.0
// Fault plans: what is read, and how mistakes are named.
#include "chaos/plan.hpp"

#include <gtest/gtest.h>

#include <filesystem>

namespace di::chaos {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view head = "apiVersion: di-chaos/v1\nname: p\n";

std::string complaints(std::string_view rest) {
  const auto out = read_plan(std::string{head} + std::string{rest}, "p.yaml");
  EXPECT_FALSE(out.value.has_value());
  std::string all;
  for (const problem& p : out.problems)
    all += std::to_string(p.at.line) + ": " + p.what + "\n";
  return all;
}

TEST(fault_plan, reads_every_part) {
  const auto out = read_plan(std::string{head} + R"(covers: [F1, C34, I1]
sets: [kv.replicas=1]
limit: 30s
workload: {requests: 5, output_tokens: 10..20, sampling: greedy, n: 2}
faults:
  - {fault: kill, target: rank 3, when: tokens > 200, after: 5ms}
  - {fault: delay, target: rank 1, peer: control, at: 1.5s, delay: 20ms, jitter: 5ms, for: 2s}
  - {fault: slow, target: random rank, at: 0s, factor: x10, for: 1s}
  - {fault: drop, target: all ranks, at: 1s, rate: 5%, one_way: true}
expect: {failed: 0, views: 1..2, expelled: 1, events: [view_committed]}
)",
                             "p.yaml");
  ASSERT_TRUE(out.value.has_value()) << out.problems.front().what;
  const plan& p = *out.value;
  EXPECT_EQ(p.work.requests, 5U);
  EXPECT_FALSE(p.work.mixed);
  EXPECT_EQ(p.limit, 30s);
  ASSERT_EQ(p.faults.size(), 4U);
  EXPECT_EQ(p.faults[0].trigger.kind, trigger_kind::tokens);
  EXPECT_EQ(p.faults[0].trigger.count, 200U);
  EXPECT_EQ(p.faults[0].after, 5ms);
  EXPECT_EQ(p.faults[1].trigger.at, 1500ms);
  EXPECT_EQ(p.faults[1].peer.kind, target_kind::control);
  EXPECT_DOUBLE_EQ(p.faults[2].factor, 10);
  EXPECT_DOUBLE_EQ(p.faults[3].rate, 0.05);
  EXPECT_EQ(p.expect.views, (range{1, 2}));
  EXPECT_EQ(p.expect.events, std::vector<std::string>{"view_committed"});
}

TEST(fault_plan, refuses_unknown_keys_with_a_suggestion) {
  EXPECT_NE(
      complaints("falts: []\n").find("3: unknown key falts in the plan; did you mean faults?"),
      std::string::npos);
  EXPECT_NE(complaints("workload: {request: 3}\n").find("did you mean requests?"),
            std::string::npos);
  EXPECT_NE(
      complaints("faults: [{fault: kil, target: control, at: 1s}]\n").find("did you mean kill?"),
      std::string::npos);
}

TEST(fault_plan, reports_all_mistakes_at_once_in_their_order) {
  const std::string all = complaints("limit: 3\nfaults:\n  - {fault: kill, at: 1s}\n"
                                     "  - {fault: slow, target: rank 1, at: 1s}\n"
                                     "  - {fault: kill, target: rank 1}\n");
  const auto limit = all.find("3: "), kill = all.find("kill needs target"),
             slow = all.find("slow needs for"), at = all.find("exactly one of `at` and `when`");
  EXPECT_NE(at, std::string::npos) << all;
  EXPECT_LT(limit, kill);
  EXPECT_LT(kill, slow);
  EXPECT_LT(slow, at);
}

TEST(fault_plan, refuses_values_that_mean_nothing) {
  EXPECT_NE(complaints("covers: [F29]\n").find("F29"), std::string::npos);
  EXPECT_NE(complaints("workload: {n: 3..1}\n").find("ends before it begins"), std::string::npos);
  EXPECT_NE(complaints("faults: [{fault: kill, target: rank x, at: 1s}]\n").find("rank N"),
            std::string::npos);
  EXPECT_NE(complaints("faults: [{fault: kill, target: rank 1, when: soon}]\n").find("tokens > N"),
            std::string::npos);
  EXPECT_NE(complaints("faults: [{fault: drop, target: rank 1, at: 1s, rate: 120%}]\n")
                .find("0% to 100%"),
            std::string::npos);
}

TEST(fault_plan, must_say_which_format_it_has) {
  const auto out = read_plan("name: x\n", "p.yaml");
  ASSERT_FALSE(out.value.has_value());
  EXPECT_NE(out.problems.front().what.find("apiVersion"), std::string::npos);
}

TEST(fault_plan, of_this_repository_are_all_readable) {
  std::size_t plans = 0;
  for (const auto& entry : std::filesystem::directory_iterator{DI_SOURCE_DIR "/chaos/plans"}) {
    const auto p = load_plan(entry.path().string());
    EXPECT_TRUE(p.ok()) << p.error().what;
    EXPECT_EQ(p.ok() ? p->name : "", entry.path().stem().string());
    ++plans;
  }
  EXPECT_GT(plans, 0U);
}

} // namespace
} // namespace di::chaos
