// SPDX-License-Identifier: Apache-2.0
// Time of one pick over a row of 129,280 logits, one thread. Prints JSON: median and fastest
// microseconds per case.
//
//   sampler_bench [PICKS]
//
// Rows: "peaked" looks like a language model's (normal noise of width 2.5, a few high tokens),
// "flat" is normal noise of width 0.5, which leaves pruning nothing to prune. The slow twin is
// measured on the peaked row for comparison.
#include "engine/sampling/sampler.hpp"
#include "engine/sampling/slow_sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>

namespace {

using di::engine::pick_slowly, di::engine::sample_scratch, di::engine::sampler,
    di::engine::sampling_params;
using di::engine::token_history;

constexpr std::size_t vocab = 129'280;

std::vector<float> make_row(float width, bool peaks) {
  std::mt19937 random{42};
  std::normal_distribution<float> normal{0, width};
  std::vector<float> row(vocab);
  for (float& x : row)
    x = normal(random);
  for (int i = 0; peaks && i < 30; ++i)
    row[random() % vocab] = 14.0F - 0.35F * static_cast<float>(i);
  return row;
}

void measure(const char* name, int picks, const std::function<di::token_id(std::uint32_t)>& pick,
             bool last = false) {
  std::vector<double> times;
  std::uint64_t sum = 0;
  for (int i = 0; i < picks; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    sum += static_cast<std::uint64_t>(pick(static_cast<std::uint32_t>(i)));
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::sort(times.begin(), times.end());
  fmt::print("  \"{}\": {{\"median_us\": {:.1f}, \"fastest_us\": {:.1f}, \"ids_sum\": {}}}{}\n",
             name, times[times.size() / 2], times.front(), sum, last ? "" : ",");
}

} // namespace

int main(int argc, char** argv) {
  const int picks = argc > 1 ? std::atoi(argv[1]) : 200;
  const std::vector<float> peaked = make_row(2.5F, true), flat = make_row(0.5F, false);
  token_history history;
  std::mt19937 random{1};
  for (int i = 0; i < 4096; ++i)
    history.push(static_cast<di::token_id>(random() % vocab));
  sample_scratch scratch;
  const auto with = [&](const std::vector<float>& row,
                        const std::function<void(sampling_params&)>& change) {
    sampling_params p;
    p.seed = 7;
    change(p);
    return [&scratch, &row, &history,
            s = sampler::make(p, vocab, {}).value()](std::uint32_t position) {
      return s.pick({.logits = row, .position = position, .history = &history}, scratch).value().id;
    };
  };
  fmt::print("{{\n  \"benchmark\": \"one pick, vocabulary {}\", \"picks\": {}, \"cores\": {},\n",
             vocab, picks, std::thread::hardware_concurrency());
  measure("greedy", picks, with(peaked, [](auto& p) { p.temperature = 0; }));
  measure("sampled", picks, with(peaked, [](auto&) {}));
  measure("sampled_flat_row", picks, with(flat, [](auto&) {}));
  measure("top_p_0.95", picks, with(peaked, [](auto& p) { p.top_p = 0.95; }));
  measure("top_p_0.95_flat_row", picks, with(flat, [](auto& p) { p.top_p = 0.95; }));
  measure("top_k_50", picks, with(peaked, [](auto& p) { p.top_k = 50; }));
  measure("top_k_50_top_p_0.9_min_p_0.02", picks, with(peaked, [](auto& p) {
            p.top_k = 50;
            p.top_p = 0.9;
            p.min_p = 0.02;
          }));
  measure("penalties_4096_seen", picks, with(peaked, [](auto& p) {
            p.repetition_penalty = 1.1;
            p.frequency_penalty = 0.2;
          }));
  measure("sampled_logprobs_5", picks, with(peaked, [](auto& p) { p.logprobs = 5; }));
  measure("greedy_logprobs_20", picks, with(peaked, [](auto& p) {
            p.temperature = 0;
            p.logprobs = 20;
          }));
  sampling_params p;
  p.seed = 7;
  measure(
      "sampled_slow_twin", std::max(1, picks / 20),
      [&](std::uint32_t position) {
        return pick_slowly(p, {}, {.logits = peaked, .position = position}).value().id;
      },
      true);
  fmt::print("}}\n");
}
