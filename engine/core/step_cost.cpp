// SPDX-License-Identifier: Apache-2.0
// Fit and use of the step cost model.
#include "engine/core/step_cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace di::engine {

namespace {

using vec3 = std::array<double, 3>;

constexpr double learn_spread = 0.05; ///< share by which a step moves the spread and the error

/// Index of element (i, j), i <= j, of an upper triangle stored by rows.
constexpr std::size_t at(std::size_t i, std::size_t j) {
  return i * 3 - i * (i + 1) / 2 + j;
}

/// Solves the rows and columns in `active` of m x = v by elimination; the others are 0.
/// @return false if it is singular or a result is negative
bool solve_active(const std::array<vec3, 3>& m, const vec3& v, unsigned active, vec3& x) {
  std::array<std::array<double, 4>, 3> a{};
  std::array<std::size_t, 3> index{};
  std::size_t n = 0;
  for (std::size_t i = 0; i < 3; ++i)
    if (active & (1U << i))
      index[n++] = i;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j)
      a[i][j] = m[index[i]][index[j]];
    a[i][3] = v[index[i]];
  }
  for (std::size_t k = 0; k < n; ++k) { // positive definite: no pivoting needed
    if (!(a[k][k] > 1e-14))
      return false;
    for (std::size_t i = k + 1; i < n; ++i) {
      const double f = a[i][k] / a[k][k];
      for (std::size_t j = k; j < n; ++j)
        a[i][j] -= f * a[k][j];
      a[i][3] -= f * a[k][3];
    }
  }
  x = {};
  for (std::size_t k = n; k-- > 0;) {
    double sum = a[k][3];
    for (std::size_t j = k + 1; j < n; ++j)
      sum -= a[k][j] * x[index[j]];
    x[index[k]] = sum / a[k][k];
    if (!(x[index[k]] >= 0))
      return false;
  }
  return true;
}

/// x^T m x / 2 - v^T x: what the solution minimizes.
double objective(const std::array<vec3, 3>& m, const vec3& v, const vec3& x) {
  double sum = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    double row = 0;
    for (std::size_t j = 0; j < 3; ++j)
      row += m[i][j] * x[j];
    sum += x[i] * (row / 2 - v[i]);
  }
  return sum;
}

} // namespace

step_cost::step_cost(step_cost_options options)
    : options_{options}, k_{options.a_ms, options.b_ms, options.c_ms} {
}

void step_cost::observe(const step_shape& shape, double t) noexcept {
  if (!(t > 0) || !std::isfinite(t) || !(shape.rows > 0) || !std::isfinite(shape.rows)
      || !(shape.work >= 0) || !std::isfinite(shape.work)) {
    ++refused_;
    return;
  }
  const double predicted = ms(shape);
  const double size = std::max(predicted, t / 4); // of the weight: not much below the truth
  const double deviation = std::abs(t - predicted) / size;
  const double limit = options_.outlier_spreads * spread_;
  double weight = 1 / (size * size);
  if (deviation > limit) {
    weight *= limit / deviation;
    ++outliers_;
  }
  // A lasting change of speed looks like outliers: the spread grows until they count.
  spread_ += learn_spread * (std::min(deviation, limit) - spread_);
  spread_ = std::max(spread_, 1e-3);
  error_ += (steps_ == 0 ? 1 : learn_spread) * (std::abs(t - predicted) / t - error_);

  const vec3 x{1, shape.rows, shape.work};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = i; j < 3; ++j)
      xx_[at(i, j)] = options_.forget * xx_[at(i, j)] + weight * x[i] * x[j];
    xt_[i] = options_.forget * xt_[i] + weight * x[i] * t;
  }
  ++steps_;
  solve();
}

void step_cost::solve() noexcept {
  // In units in which the diagonal is 1; a column of zeros keeps its coefficient.
  vec3 unit{};
  for (std::size_t i = 0; i < 3; ++i)
    unit[i] = xx_[at(i, i)] > 0 ? 1 / std::sqrt(xx_[at(i, i)]) : 0;
  std::array<vec3, 3> m{};
  vec3 v{};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j)
      m[i][j] = unit[i] * unit[j] * xx_[i < j ? at(i, j) : at(j, i)];
    const double old = unit[i] > 0 ? k_[i] / unit[i] : 0;
    m[i][i] += options_.pull;
    v[i] = unit[i] * xt_[i] + options_.pull * old;
  }
  vec3 best{};
  double least = 0; // of x = 0
  for (unsigned active = 1; active < 8; ++active) {
    vec3 x{};
    if (!solve_active(m, v, active, x))
      continue;
    const double value = objective(m, v, x);
    if (value < least) {
      least = value;
      best = x;
    }
  }
  for (std::size_t i = 0; i < 3; ++i)
    if (unit[i] > 0)
      k_[i] = best[i] * unit[i];
}

double step_cost::ms(const step_shape& shape) const noexcept {
  return k_[0] + k_[1] * shape.rows + k_[2] * shape.work;
}

std::uint32_t step_cost::rows_within(double budget_ms, const step_shape& fixed,
                                     double context) const noexcept {
  const double left = budget_ms - ms(fixed);
  if (!(left > 0))
    return 1;
  const double slope = k_[1] + k_[2] * std::max(context, 0.0);
  const double divisor = slope + std::sqrt(slope * slope + 2 * k_[2] * left);
  const double root = 2 * left / divisor; // no cancellation; infinite if rows cost nothing
  if (!(root < chunk_rows_max))
    return chunk_rows_max;
  return std::max(1U, static_cast<std::uint32_t>(root));
}

std::string step_cost::to_string() const {
  return fmt::format(
      "t = {:.4g} ms + {:.4g} ms * rows + {:.4g} ms * work ({} steps, error {:.1f} %)", k_[0],
      k_[1], k_[2], steps_, 100 * error_);
}

} // namespace di::engine
