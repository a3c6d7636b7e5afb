// SPDX-License-Identifier: Apache-2.0
// DeepSeek's published table of variable-length verification against fixed length 5, and a model of
// it: a step time fitted to some of its points, and drafts whose confidences are as telling as the
// accepted lengths say. For the test and the bench of the planner.
//
// Assumptions, all that goes into the numbers:
//   1. "Accepted" counts drafts; a step yields one token more per sequence (`bonus` = 0 takes the
//      other reading, in which it is counted in).
//   2. A step of M rows takes T(M) = 1 + b M + q M^2 in units of its fixed part; a step of variable
//      lengths takes s more (its scheduling, remapping). Only ratios are published, so the unit is
//      free. q >= 0 stands for the passage from memory bound to compute bound and for the slowest
//      rank, whose surplus grows with the load. Nothing depends on contexts or on the number of
//      sequences by itself: at a fixed length it could not be told from rows.
//   3. b, q, s >= 0 minimize the squared error of the throughput ratio on the points given.
//   4. Each draft is sure with probability p (it is accepted with chance `sure`), else unsure
//      (`unsure`), independent of position and sequence; confidences say that chance, exactly. p,
//      sure, unsure are fitted to all accepted lengths, fixed and variable, once for all loads.
//   5. The planner sees fresh confidences; the published system those of one or two steps before.
// @source decode.md A.3.6
#pragma once

#include "engine/core/verify_planner.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace di::test {

struct published_load {
  double sequences;                ///< per rank
  double verified;                 ///< variable; fixed: 5
  double accepted_fixed, accepted; ///< drafts per sequence and step
  double gain;                     ///< throughput of variable over fixed, minus 1
};
inline constexpr std::array<published_load, 6> published_loads{{
    {16, 4.44, 3.32, 3.24, -0.015},
    {32, 3.65, 3.25, 3.17, 0.016},
    {48, 3.94, 3.30, 3.26, 0.036},
    {60, 3.58, 3.30, 3.21, 0.054},
    {72, 3.24, 3.29, 3.12, 0.067},
    {96, 3.24, 3.30, 3.15, 0.110},
}};
inline constexpr std::uint32_t published_drafts = 5;

struct step_time {
  double b = 0, q = 0, s = 0;
  double of(double rows) const noexcept { return 1 + b * rows + q * rows * rows; }
  /// What it predicts for a published point.
  double gain(const published_load& p, double bonus) const noexcept;
};
/// @param points  indices into published_loads
step_time fit_step_time(std::span<const std::size_t> points, double bonus = 1);

/// One way to leave out two points.
struct split {
  std::array<std::size_t, 2> left_out{};
  step_time fit;
  std::array<double, 2> error{}; ///< predicted minus published gain of the left out
  double fit_error = 0;          ///< largest on the others
  bool inside() const noexcept { return left_out[0] != 0 && left_out[1] != 5; } ///< interpolates
};
std::vector<split> all_splits(double bonus = 1);

struct draft_mixture {
  double p = 0, sure = 0, unsure = 0;
  /// Accepted drafts per sequence if the likeliest `verified` per sequence are verified.
  double accepted(double verified) const;
};
draft_mixture fit_mixture();
/// Largest difference to the published accepted lengths, fixed or variable.
double mixture_error(const draft_mixture& m);

struct load_result {
  double sequences = 0;
  double verified = 0, accepted = 0; ///< of the planner, per sequence and step
  double gain = 0;                   ///< over fixed length 5
  double over_best = 0;              ///< over the best fixed length
  std::uint32_t best_fixed = 0;      ///< 0: no drafts
  double trimmed = 0;                ///< share of steps that were trimmed
};
/// Runs the planner on `steps` steps of drawn confidences; throughputs are expected ones.
load_result replay(const step_time& time, const draft_mixture& drafts, std::uint32_t sequences,
                   std::uint32_t steps, std::uint64_t seed);

} // namespace di::test
