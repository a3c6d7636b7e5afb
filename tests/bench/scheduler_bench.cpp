// SPDX-License-Identifier: Apache-2.0
// What planning costs per step: the verify planner, calibration and the cost model at R running
// sequences with five drafts. JSON; medians of timed rounds.
#include "engine/core/calibration.hpp"
#include "engine/core/step_cost.hpp"
#include "engine/core/verify_planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

namespace di::engine {
namespace {

constexpr std::uint32_t drafts = 5;

struct spread {
  double median_us, p99_us;
};

template <class F>
spread timed(int rounds, F&& work) {
  std::vector<double> us;
  for (int i = 0; i < rounds + 20; ++i) {
    const auto began = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    if (i >= 20)
      us.push_back(took.count());
  }
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us[us.size() * 99 / 100]};
}

/// Step time that makes the planner trim (as rows cost), or verify all (if they are free).
verify_planner planner_of(double row_ms) {
  verify_planner planner;
  for (std::uint32_t rows = 1; rows <= 2048; rows += std::max(1U, rows / 5))
    planner.profile_step(rows, 10 + row_ms * rows);
  planner.profile_draft(1, 1);
  planner.profile_draft(256, 3);
  return planner;
}

std::string measure(std::uint32_t sequences) {
  std::mt19937_64 random{sequences};
  std::vector<std::array<float, drafts>> logits(sequences), survivals(sequences);
  std::vector<verify_offer> offers(sequences);
  calibration fitted;
  const auto redraw = [&] {
    for (std::uint32_t i = 0; i < sequences; ++i)
      for (float& z : logits[i])
        z = static_cast<float>(random() % 1000) / 100 - 3;
  };
  const auto offer_all = [&] {
    for (std::uint32_t i = 0; i < sequences; ++i) {
      fitted.survivals(logits[i], survivals[i]);
      offers[i] = {{speculation_mode::varlen, 0}, drafts, 1000, survivals[i]};
    }
  };
  verify_planner trims = planner_of(0.05), takes_all = planner_of(0);
  redraw();
  offer_all();
  const spread trim = timed(2000, [&] { trims.choose(offers, 0, sequences); });
  const spread all = timed(2000, [&] { takes_all.choose(offers, 0, sequences); });
  const spread wants = timed(2000, [&] { trims.wants_drafts(sequences, 0, 64); });
  const spread correct = timed(2000, offer_all);
  const spread learn = timed(2000, [&] {
    for (std::uint32_t i = 0; i < sequences; ++i)
      fitted.observe(logits[i], i % (drafts + 1));
  });
  step_cost cost;
  const spread fit = timed(2000, [&] {
    step_shape s;
    for (std::uint32_t i = 0; i < sequences; ++i)
      s.add(1 + i % 6, 1000 + i);
    cost.observe(s, 10 + static_cast<double>(random() % 100) / 100);
    trims.observe_step(static_cast<std::uint32_t>(s.rows), 20);
  });
  const double sum =
      trim.median_us + wants.median_us + correct.median_us + learn.median_us + fit.median_us;
  const auto json = [](const char* name, const spread& s) {
    return fmt::format("\"{}\": {{\"median_us\": {:.2f}, \"p99_us\": {:.2f}}}", name, s.median_us,
                       s.p99_us);
  };
  return fmt::format(
      "{{\"sequences\": {}, \"drafts\": {}, \"trimmed\": {}, {}, {}, {}, {}, {}, {}, "
      "\"sum_median_us\": {:.2f}}}",
      sequences, drafts, trims.plans(verify_plan::kind::trimmed) > 0, json("choose_trimmed", trim),
      json("choose_all", all), json("wants_drafts", wants), json("survivals", correct),
      json("calibration_observe", learn), json("cost_observe", fit), sum);
}

} // namespace

int run() {
  std::string out;
  for (const std::uint32_t n : {1U, 8U, 32U, 64U, 96U, 256U, 1024U})
    out += fmt::format("{}\n  {}", out.empty() ? "" : ",", measure(n));
  fmt::print("{{\"planning\": [{}]}}\n", out);
  return 0;
}

} // namespace di::engine

int main() {
  return di::engine::run();
}
