// SPDX-License-Identifier: Apache-2.0
// Lines for dilaunch run, made from a plan.
#include "chaos/answers.hpp"
#include "chaos/workload.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace di::chaos {
namespace {

TEST(chaos_workload, is_the_same_for_the_same_seed) {
  workload w;
  const model_facts model{2048, true};
  EXPECT_EQ(make_workload(w, model), make_workload(w, model));
  workload other = w;
  other.seed = 2;
  EXPECT_NE(make_workload(w, model), make_workload(other, model));
}

TEST(chaos_workload, sends_those_after_in_a_phase_of_their_own) {
  workload w;
  w.requests = 3;
  w.after = 2;
  const std::string lines = make_workload(w, {100, false});
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 5);
  std::size_t later = 0;
  for (std::size_t at = lines.find("\"phase\":1"); at != std::string::npos;
       at = lines.find("\"phase\":1", at + 1))
    ++later;
  EXPECT_EQ(later, 2U);
  EXPECT_EQ(lines.find("\"prompt\":"), std::string::npos); // no words, no text
}

TEST(chaos_workload, knows_the_demo_model) {
  const auto facts = read_model_facts(DI_SOURCE_DIR "/launch/models/demo", "");
  ASSERT_TRUE(facts.ok()) << facts.error().what;
  EXPECT_EQ(facts->vocab, 2048U);
  EXPECT_TRUE(facts->has_words);
  EXPECT_FALSE(read_model_facts("/nowhere", "").ok());
}

TEST(chaos_answers, leave_only_the_times_out_of_what_must_be_equal) {
  const auto a = read_answers(R"({"id":1,"ids":[5,6],"timings":{"attempts":2,"submitted_ms":1.5,)"
                              R"("token_ms":[2.0,3.0],"ranks":[[0,3],[1,2]]}})"
                              "\n"
                              R"({"id":2,"choices":[{"index":0,"ids":[1],"timings":{}},)"
                              R"({"index":1,"ids":[2],"error":{"code":"cancelled"}}]})"
                              "\n");
  ASSERT_TRUE(a.ok()) << a.error().what;
  EXPECT_EQ((*a)[0].canonical, R"({"id":1,"ids":[5,6]})");
  EXPECT_EQ((*a)[0].streams[0].attempts, 2U);
  EXPECT_EQ((*a)[0].streams[0].served_by[1], (std::pair{1U, 2U}));
  EXPECT_EQ((*a)[1].streams.size(), 2U);
  EXPECT_EQ((*a)[1].error, "cancelled");
  EXPECT_EQ((*a)[1].canonical.find("timings"), std::string::npos);
  EXPECT_NE(read_answers("{}\n{").error().what.find("line 1"), std::string::npos);
}

} // namespace
} // namespace di::chaos
