// SPDX-License-Identifier: Apache-2.0
// Metrics of the cluster: sums over ranks, names that promtool accepts, a control that is away.
#include "launch/serve/cluster_metrics.hpp"
#include "launch/serve/gateway_pages.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace di::serve {
namespace {

cluster_reading busy() {
  cluster_reading r;
  r.keeper.emplace();
  r.keeper->view = epoch{7};
  r.keeper->wanted = 2;
  for (std::uint32_t i = 0; i < 2; ++i) {
    proto::kept_rank k;
    k.rank = rank_id{i};
    k.state = i == 0 ? "member" : "fenced";
    k.deaths = i;
    k.starts = 2 * i;
    r.keeper->ranks.push_back(k);
  }
  r.schedule.emplace();
  r.schedule->queued = 5;
  for (std::uint32_t i = 0; i < 2; ++i) {
    proto::rank_load l;
    l.running = 3;
    l.waiting = 1;
    l.kv_tokens_total = 100;
    l.kv_tokens_free = 75;
    r.schedule->ranks.push_back(l);
  }
  r.journal.emplace();
  r.journal->tokens = 1'234;
  r.counters.emplace();
  r.counters->counters = {{"di_rank_preemptions_total", 2}, {"di_rank_drafts_accepted_total", 40},
                          {"di_rebalancer_moe_lb", 1.5},    {"di_rank_deaths_total", 99},
                          {"no name of ours", 1},           {"di_bad name", 1}};
  return r;
}

std::string text_of(const cluster_reading& r, bool vllm) {
  metric_page page;
  fill_cluster(page, r, vllm, "tiny");
  return page.text();
}

void expect_line(const std::string& text, const std::string& line) {
  EXPECT_NE(("\n" + text).find("\n" + line + "\n"), std::string::npos) << line << "\n" << text;
}

TEST(cluster_metrics, sums_over_ranks) {
  const auto text = text_of(busy(), false);
  expect_line(text, "di_control_up 1");
  expect_line(text, "di_view_epoch 7");
  expect_line(text, R"(di_ranks{state="member"} 1)");
  expect_line(text, R"(di_ranks{state="quarantined"} 0)");
  expect_line(text, "di_rank_deaths_total 1");
  expect_line(text, "di_sequences_running 6");
  expect_line(text, "di_kv_cache_usage_ratio 0.25");
  expect_line(text, "di_requests_queued 5");
  expect_line(text, "di_journal_tokens_total 1234");
  expect_line(text, "di_rank_preemptions_total 2");
  expect_line(text, "# TYPE di_rebalancer_moe_lb gauge");
  EXPECT_EQ(text.find("bad name"), std::string::npos);
  EXPECT_EQ(text.find("vllm:"), std::string::npos);
}

TEST(cluster_metrics, shows_the_names_of_vllm_when_told) {
  const auto text = text_of(busy(), true);
  expect_line(text, R"(vllm:num_requests_running{model_name="tiny"} 6)");
  expect_line(text, R"(vllm:num_requests_waiting{model_name="tiny"} 7)");
  expect_line(text, R"(vllm:kv_cache_usage_perc{model_name="tiny"} 0.25)");
  expect_line(text, R"(vllm:spec_decode_num_accepted_tokens_total{model_name="tiny"} 40)");
  expect_line(text, R"(vllm:num_requests_swapped{model_name="tiny"} 0)");
  expect_line(text,
              R"(vllm:cache_config_info{model_name="tiny",block_size="128",num_gpu_blocks="1"} 1)");
}

TEST(cluster_metrics, says_that_control_is_away) {
  EXPECT_EQ(text_of({}, true), "# HELP di_control_up 1 if the control process answers.\n"
                               "# TYPE di_control_up gauge\ndi_control_up 0\n");
}

TEST(gateway_pages, are_one_page_with_each_family_once) {
  EXPECT_EQ(
      merged_pages(
          {"# HELP a first\n# TYPE a counter\na{gateway=\"0\"} 1\n# HELP b x\n# TYPE b gauge\nb "
           "2\n",
           "",
           "stray 1\n# HELP a second\n# TYPE a counter\na{gateway=\"1\"} 3\n\n# HELP c y\nc 4"}),
      "# HELP a first\n# TYPE a counter\na{gateway=\"0\"} 1\na{gateway=\"1\"} 3\n"
      "# HELP b x\n# TYPE b gauge\nb 2\n# HELP c y\nc 4\n");
  EXPECT_EQ(merged_pages({}), "");
}

TEST(cluster_metrics, promtool_finds_nothing_to_say) {
  if (std::system("command -v promtool >/dev/null") != 0)
    FAIL() << "no promtool here (package prometheus of launch/packages.txt)";
  const auto path = testing::TempDir() + "di_cluster_metrics.txt";
  std::ofstream{path} << text_of(busy(), false);
  EXPECT_EQ(std::system(("promtool check metrics <" + path).c_str()), 0);
  std::remove(path.c_str());
}

} // namespace
} // namespace di::serve
