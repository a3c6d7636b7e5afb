// SPDX-License-Identifier: Apache-2.0
// What a step costs: t = a + b * rows + c * work, fitted to measured steps as they come, and the
// number of prompt rows that fits a time budget. Pure; no clock of its own.
//
// work = sum over the segments of rows * (context + rows / 2): what attention reads, where context
// is the number of positions before the segment's first row.
//
// The fit: least squares with forgetting; steps weigh by 1 / t^2 (relative error), and a step far
// from the model (a page fault, a busy neighbour) weighs less in proportion. It is pulled a little
// towards the coefficients of the step before: in directions in which recent steps say nothing (all
// of one size), they stay where they were instead of blowing up. Coefficients are the non-negative
// solution; with three unknowns every active set is tried.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace di::engine {

/// [rows] of one prefill chunk at most, whatever the budget.
inline constexpr std::uint32_t chunk_rows_max = 32'768;

/// What a step computes, in the model's terms.
struct step_shape {
  double rows = 0;
  double work = 0; ///< [rows * positions]

  /// Adds a segment of `rows` behind `context` positions.
  void add(double segment_rows, double context) noexcept {
    rows += segment_rows;
    work += segment_rows * (context + segment_rows / 2);
  }
};

struct step_cost_options {
  double forget = 0.98; ///< per step; 0.98 remembers about 50 steps
  double pull = 1e-3;   ///< towards the previous coefficients, as a share of the data's weight
  double outlier_spreads = 3; ///< residuals beyond this many mean deviations count less
  double a_ms = 1, b_ms = 0.1, c_ms = 1e-5; ///< until steps are measured
};

/// Owned by RANK, used on its thread only.
class step_cost {
public:
  explicit step_cost(step_cost_options options = {});

  /// A measured step. Values that are not finite, negative or without rows are counted and ignored.
  void observe(const step_shape& shape, double ms) noexcept;

  /// [ms] >= 0; more rows or more work never cost less.
  double ms(const step_shape& shape) const noexcept;
  /// The most prompt rows behind `context` positions that fit `budget_ms` beside `fixed`, the rows
  /// that the step holds anyway: the root of c/2 n^2 + (b + c context) n + ms(fixed) - budget_ms.
  /// @return from 1 (a prompt never starves) to chunk_rows_max
  std::uint32_t rows_within(double budget_ms, const step_shape& fixed,
                            double context) const noexcept;

  double a_ms() const noexcept { return k_[0]; } ///< [ms] of a step
  double b_ms() const noexcept { return k_[1]; } ///< [ms] of a row
  double c_ms() const noexcept { return k_[2]; } ///< [ms] of a row at one position of context
  std::uint64_t steps() const noexcept { return steps_; }
  std::uint64_t refused() const noexcept { return refused_; }   ///< ignored measurements
  std::uint64_t outliers() const noexcept { return outliers_; } ///< that counted less
  /// Mean relative error of the predictions, made before each step was seen; decays with the steps.
  double error() const noexcept { return error_; }
  /// "t = 1.20 ms + 0.0310 ms * rows + 1.1e-06 ms * work (812 steps, error 4.1 %)"
  std::string to_string() const;

private:
  void solve() noexcept;

  step_cost_options options_;
  std::array<double, 3> k_;    // a, b, c
  std::array<double, 6> xx_{}; // decayed sums of x x^T, upper triangle by rows; x = (1, rows, work)
  std::array<double, 3> xt_{}; // of x t
  double spread_ = 0.5;        // mean relative deviation, outliers cut
  double error_ = 0;
  std::uint64_t steps_ = 0, refused_ = 0, outliers_ = 0;
};

} // namespace di::engine
