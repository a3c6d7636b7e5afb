// SPDX-License-Identifier: Apache-2.0
// Time of planning where experts live, one thread. One plan and one line of JSON per line of stdin,
// so that eplb_compare.py can take turns with it.
//
//   eplb_bench LOADS LAYERS EXPERTS SLOTS RANKS BINS
//
// LOADS: [bins, layers, experts] fp32, little endian. Lines: `fresh` plans from nothing, `moves N`
// from contiguous blocks with at most N moves, `published` with the published algorithm on the sum
// over the bins.
#include "engine/moe/eplb.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <numeric>
#include <string>

namespace {

using di::engine::balance_of, di::engine::eplb_limits, di::engine::eplb_plan,
    di::engine::eplb_shape, di::engine::load_view, di::engine::plan_experts,
    di::engine::plan_experts_published, di::engine::rank_balance;

double cpu_seconds() {
  std::timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct setting {
  load_view load;
  eplb_shape shape;
  std::vector<float> sums; ///< [layers, experts]
  std::vector<std::uint32_t> contiguous;
};

di::result<std::vector<std::uint32_t>> run(const setting& s, const std::string& line,
                                           std::uint32_t& moves) {
  if (line == "published")
    return plan_experts_published(s.sums, s.load.layers, s.shape.ranks * s.shape.slots, 1, 1,
                                  s.shape.ranks);
  eplb_limits limits;
  const bool fresh = line == "fresh";
  if (!fresh)
    limits.moves_max = static_cast<std::uint32_t>(std::strtoul(line.c_str() + 6, nullptr, 10));
  DI_TRY(eplb_plan plan, plan_experts(s.load, s.shape, limits,
                                      fresh ? std::span<const std::uint32_t>{} : s.contiguous));
  moves = plan.moves;
  return std::move(plan.expert_of_slot);
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    fmt::print(stderr, "usage: eplb_bench LOADS LAYERS EXPERTS SLOTS RANKS BINS\n");
    return 2;
  }
  const auto number = [&](int i) {
    return static_cast<std::uint32_t>(std::strtoul(argv[i], nullptr, 10));
  };
  setting s;
  s.load = {number(6), number(2), number(3), {}};
  s.shape.slots = number(4);
  s.shape.ranks = number(5);
  const std::size_t one = std::size_t{s.load.layers} * s.load.experts;
  std::vector<float> rows(one * s.load.bins);
  std::ifstream file{argv[1], std::ios::binary};
  file.read(reinterpret_cast<char*>(rows.data()),
            static_cast<std::streamsize>(rows.size() * sizeof(float)));
  if (!file) {
    fmt::print(stderr, "{}: less than {} loads\n", argv[1], rows.size());
    return 2;
  }
  s.load.rows = rows;
  s.sums.resize(one);
  for (std::size_t i = 0; i < rows.size(); ++i)
    s.sums[i % one] += rows[i];
  const std::size_t slots = std::size_t{s.shape.ranks} * s.shape.slots;
  for (std::uint32_t layer = 0; layer < s.load.layers; ++layer)
    for (std::size_t slot = 0; slot < slots; ++slot)
      s.contiguous.push_back(static_cast<std::uint32_t>(slot % s.load.experts));
  for (std::string line; std::getline(std::cin, line);) {
    std::uint32_t moves = 0;
    const double cpu = cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    const auto plan = run(s, line, moves);
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    const double used = cpu_seconds() - cpu;
    if (!plan) {
      fmt::print(stderr, "{}\n", plan.error().render());
      return 1;
    }
    const rank_balance b = balance_of(s.load, s.shape.ranks, *plan);
    fmt::print(
        "{{\"seconds\": {:.6f}, \"cpu_seconds\": {:.6f}, \"moe_lb\": {:.5f}, \"moves\": {}}}\n",
        wall.count(), used, b.ratio(), moves);
    std::fflush(stdout);
  }
  return 0;
}
