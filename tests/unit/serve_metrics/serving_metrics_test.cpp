// SPDX-License-Identifier: Apache-2.0
// What a gateway's metrics count, and whether promtool accepts their text.
#include "launch/serve/serving_metrics.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

namespace di::serve {
namespace {

using namespace std::chrono_literals;
using clock = request_meter::clock;

/// The value of a series, by the line's beginning up to the blank; -1: there is none.
double value_of(const std::string& text, const std::string& series) {
  std::istringstream lines{text};
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(series + " "))
      return std::stod(line.substr(series.size() + 1));
  return -1;
}

serving_metrics_options tiny(bool compat = false) {
  return {2, "tiny", compat};
}

TEST(serving_metrics, counts_answers_by_route_and_status) {
  serving_metrics m{tiny()};
  m.http_began(served_route::chat);
  m.http_began(served_route::chat);
  m.http_ended(served_route::chat, 200, 3ms);
  m.http_began(served_route::other);
  m.http_ended(served_route::other, 418, 1ms);
  const auto text = m.text();
  EXPECT_EQ(value_of(text, R"(di_http_requests_total{gateway="2",route="chat",status="200"})"), 1);
  EXPECT_EQ(value_of(text, R"(di_http_requests_total{gateway="2",route="other",status="4xx"})"), 1);
  EXPECT_EQ(value_of(text, R"(di_http_requests_in_flight{gateway="2",route="chat"})"), 1);
  EXPECT_EQ(
      value_of(text,
               R"(di_http_request_duration_seconds_bucket{gateway="2",route="chat",le="0.0025"})"),
      0);
  EXPECT_EQ(
      value_of(text,
               R"(di_http_request_duration_seconds_bucket{gateway="2",route="chat",le="0.005"})"),
      1);
}

TEST(serving_metrics, a_request_passes_opening_waiting_and_running) {
  serving_metrics m{tiny()};
  const auto state = [&](const char* s) {
    return value_of(m.text(),
                    std::string{R"(di_gateway_requests{gateway="2",model_name="tiny",state=")"} + s
                        + "\"}");
  };
  const auto t0 = clock::now();
  request_meter r{m, {.prompt_tokens = 10, .max_tokens = 5, .choices = 1}, t0};
  EXPECT_EQ(state("opening"), 1);
  r.opened();
  EXPECT_EQ(state("opening"), 0);
  EXPECT_EQ(state("waiting"), 1);
  r.tokens(0, 1, 4, t0 + 30ms);
  EXPECT_EQ(state("waiting"), 0);
  EXPECT_EQ(state("running"), 1);
  r.ended(served_end::stop, t0 + 40ms);
  EXPECT_EQ(state("running"), 0);
}

TEST(serving_metrics, tokens_of_a_group_share_its_time) {
  serving_metrics m{tiny()};
  const auto t0 = clock::now();
  request_meter r{m, {.prompt_tokens = 10, .max_tokens = 64, .choices = 1}, t0};
  r.tokens(0, 1, 8, t0 + 20ms);
  r.tokens(0, 4, 8, t0 + 36ms); // 4 ms each
  r.choice_ended({1'000, 19'000, 16'000});
  r.ended(served_end::length, t0 + 36ms);
  const auto text = m.text();
  const std::string l = R"({gateway="2",model_name="tiny"})";
  const std::string b = R"({gateway="2",model_name="tiny",le=")";
  EXPECT_EQ(value_of(text, "di_inter_token_latency_seconds_count" + l), 4);
  EXPECT_EQ(value_of(text, "di_inter_token_latency_seconds_bucket" + b + "0.003\"}"), 0);
  EXPECT_EQ(value_of(text, "di_inter_token_latency_seconds_bucket" + b + "0.004\"}"), 4);
  EXPECT_DOUBLE_EQ(value_of(text, "di_inter_token_latency_seconds_sum" + l), 0.016);
  EXPECT_DOUBLE_EQ(value_of(text, "di_request_time_per_output_token_seconds_sum" + l), 0.004);
  EXPECT_DOUBLE_EQ(value_of(text, "di_time_to_first_token_seconds_sum" + l), 0.020);
  EXPECT_DOUBLE_EQ(value_of(text, "di_e2e_request_latency_seconds_sum" + l), 0.036);
  EXPECT_DOUBLE_EQ(value_of(text, "di_request_inference_time_seconds_sum" + l), 0.035);
  EXPECT_EQ(value_of(text, "di_generation_tokens_total" + l), 5);
  EXPECT_EQ(value_of(text, "di_prompt_tokens_total" + l), 10);
  EXPECT_EQ(value_of(text, "di_cached_tokens_total" + l), 8); // once, however often it is said
  EXPECT_EQ(
      value_of(
          text,
          R"(di_request_success_total{gateway="2",model_name="tiny",finished_reason="length"})"),
      1);
}

TEST(serving_metrics, a_dropped_meter_is_an_abort) {
  serving_metrics m{tiny()};
  { request_meter r{m, {.prompt_tokens = 3, .max_tokens = 1, .choices = 2}, clock::now()}; }
  const auto text = m.text();
  EXPECT_EQ(value_of(text, R"(di_requests_aborted_total{gateway="2",model_name="tiny"})"), 1);
  EXPECT_EQ(value_of(text, R"(di_gateway_requests{gateway="2",model_name="tiny",state="opening"})"),
            0);
}

TEST(serving_metrics, shows_the_names_of_vllm_only_when_told) {
  EXPECT_EQ(serving_metrics{tiny()}.text().find("vllm:"), std::string::npos);
  serving_metrics m{tiny(true)};
  request_meter r{m, {.prompt_tokens = 7, .max_tokens = 1, .choices = 1}, clock::now()};
  const auto text = m.text();
  EXPECT_EQ(value_of(text, R"(vllm:prompt_tokens_total{gateway="2",model_name="tiny"})"), 7);
  EXPECT_NE(text.find("# TYPE vllm:e2e_request_latency_seconds histogram"), std::string::npos);
}

TEST(serving_metrics, loses_nothing_under_many_threads) {
  serving_metrics m{tiny()};
  std::vector<std::jthread> all;
  for (int t = 0; t < 4; ++t)
    all.emplace_back([&] {
      for (int i = 0; i < 1'000; ++i) {
        const auto t0 = clock::now();
        request_meter r{m, {.prompt_tokens = 1, .max_tokens = 2, .choices = 1}, t0};
        r.tokens(0, 1, 0, t0 + 1ms);
        r.tokens(0, 1, 0, t0 + 2ms);
        r.ended(served_end::stop, t0 + 2ms);
      }
    });
  all.clear();
  const auto text = m.text();
  EXPECT_EQ(value_of(text, R"(di_generation_tokens_total{gateway="2",model_name="tiny"})"), 8'000);
  EXPECT_EQ(
      value_of(
          text,
          R"(di_inter_token_latency_seconds_bucket{gateway="2",model_name="tiny",le="0.001"})"),
      4'000);
  EXPECT_EQ(
      value_of(text, R"(di_e2e_request_latency_seconds_count{gateway="2",model_name="tiny"})"),
      4'000);
}

TEST(serving_metrics, counts_connections_and_asks_the_server_for_the_rest) {
  serving_metrics m{tiny()};
  EXPECT_EQ(value_of(m.text(), R"(di_http_refused_total{gateway="2"})"), 0);
  m.connections(1);
  m.connections(1);
  m.connections(-1);
  m.server_counts_from([] { return server_counts{2, 1, 4}; });
  const auto text = m.text();
  EXPECT_EQ(value_of(text, R"(di_http_connections_open{gateway="2"})"), 1);
  EXPECT_EQ(value_of(text, R"(di_http_connections_total{gateway="2"})"), 2);
  EXPECT_EQ(value_of(text, R"(di_http_refused_total{gateway="2"})"), 2);
}

TEST(serving_metrics, promtool_finds_nothing_to_say) {
  if (std::system("command -v promtool >/dev/null") != 0)
    FAIL() << "no promtool here (package prometheus of launch/packages.txt)";
  serving_metrics m{{0, "odd \"name\\ \n", false}};
  m.http_began(served_route::chat);
  m.http_ended(served_route::chat, 200, 3ms);
  request_meter r{m, {.prompt_tokens = 1, .max_tokens = 2, .choices = 1}, clock::now()};
  const auto path = testing::TempDir() + "di_serving_metrics.txt";
  std::ofstream{path} << m.text();
  EXPECT_EQ(std::system(("promtool check metrics <" + path).c_str()), 0);
  std::remove(path.c_str());
}

} // namespace
} // namespace di::serve
