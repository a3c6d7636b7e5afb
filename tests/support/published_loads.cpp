// SPDX-License-Identifier: Apache-2.0
// Fits and replay of the published loads.
#include "tests/support/published_loads.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

namespace di::test {

namespace {

using engine::verify_offer;
using engine::verify_plan;
using params = std::array<double, 3>;

/// Coordinate search with shrinking factors over positive parameters; deterministic.
params minimize(const std::function<double(const params&)>& loss, params at, double factor) {
  double best = loss(at);
  while (factor > 1 + 1e-6) {
    bool better = false;
    for (std::size_t i = 0; i < at.size(); ++i)
      for (const double f : {factor, 1 / factor}) {
        params next = at;
        next[i] *= f;
        if (const double l = loss(next); l < best) {
          best = l;
          at = next;
          better = true;
        }
      }
    if (!better)
      factor = std::sqrt(factor);
  }
  return at;
}

/// Starts from several points: the losses are not convex.
params minimize_all(const std::function<double(const params&)>& loss,
                    std::initializer_list<params> starts) {
  params best{};
  double least = INFINITY;
  for (const params& start : starts) {
    const params at = minimize(loss, start, 2);
    if (const double l = loss(at); l < least) {
      least = l;
      best = at;
    }
  }
  return best;
}

double binomial(std::uint32_t n, std::uint32_t k) {
  double out = 1;
  for (std::uint32_t i = 0; i < k; ++i)
    out = out * (n - i) / (i + 1);
  return out;
}

double power(double x, std::uint32_t n) {
  double out = 1;
  for (; n > 0; --n)
    out *= x;
  return out;
}

/// Tokens per time of every uniform length, and of the planner.
struct tally {
  double tokens = 0, time = 0;
  void add(double t, double ms) {
    tokens += t;
    time += ms;
  }
  double rate() const { return tokens / time; }
};

} // namespace

double step_time::gain(const published_load& p, double bonus) const noexcept {
  const double fixed = of((1 + published_drafts) * p.sequences);
  const double variable = of((1 + p.verified) * p.sequences) + s;
  return (bonus + p.accepted) / (bonus + p.accepted_fixed) * fixed / variable - 1;
}

step_time fit_step_time(std::span<const std::size_t> points, double bonus) {
  const auto loss = [&](const params& x) {
    double sum = 0;
    for (const std::size_t i : points) {
      const double off =
          step_time{x[0], x[1], x[2]}.gain(published_loads[i], bonus) - published_loads[i].gain;
      sum += off * off;
    }
    return sum;
  };
  const params x = minimize_all(loss, {{1e-3, 3e-7, 4e-3}, {1e-3, 1e-9, 1e-2}, {5e-4, 1e-6, 1e-4}});
  return {x[0], x[1], x[2]};
}

std::vector<split> all_splits(double bonus) {
  std::vector<split> out;
  for (std::size_t i = 0; i < published_loads.size(); ++i)
    for (std::size_t j = i + 1; j < published_loads.size(); ++j) {
      split s;
      s.left_out = {i, j};
      std::vector<std::size_t> points;
      for (std::size_t k = 0; k < published_loads.size(); ++k)
        if (k != i && k != j)
          points.push_back(k);
      s.fit = fit_step_time(points, bonus);
      const auto error = [&](std::size_t k) {
        return s.fit.gain(published_loads[k], bonus) - published_loads[k].gain;
      };
      s.error = {error(i), error(j)};
      for (const std::size_t k : points)
        s.fit_error = std::max(s.fit_error, std::abs(error(k)));
      out.push_back(s);
    }
  return out;
}

double draft_mixture::accepted(double verified) const {
  // Survivals take few values: sure^i unsure^(k-i), each with the chance of its pattern.
  std::array<std::pair<double, double>, 20> values{}; // survival, how many per sequence
  std::size_t n = 0;
  for (std::uint32_t k = 1; k <= published_drafts; ++k)
    for (std::uint32_t i = 0; i <= k; ++i)
      values[n++] = {power(sure, i) * power(unsure, k - i),
                     binomial(k, i) * power(p, i) * power(1 - p, k - i)};
  std::sort(values.rbegin(), values.rend());
  double sum = 0;
  for (const auto& [survival, count] : values) {
    const double taken = std::min(count, verified);
    sum += taken * survival;
    verified -= taken;
  }
  return sum;
}

draft_mixture fit_mixture() {
  const auto mixture = [](const params& x) { // 1 - p, 1 - sure and unsure stay within (0, 1)
    return draft_mixture{1 - std::min(x[0], 0.999), 1 - std::min(x[1], 0.999),
                         std::min(x[2], 0.999)};
  };
  const auto loss = [&](const params& x) {
    const draft_mixture m = mixture(x);
    double sum = 0;
    for (const published_load& l : published_loads)
      sum += std::pow(m.accepted(l.verified) - l.accepted, 2)
             + std::pow(m.accepted(published_drafts) - l.accepted_fixed, 2);
    return sum;
  };
  static const draft_mixture fitted =
      mixture(minimize_all(loss, {{0.15, 0.01, 0.1}, {0.1, 0.05, 0.3}, {0.2, 0.002, 0.2}}));
  return fitted;
}

double mixture_error(const draft_mixture& m) {
  double most = 0;
  for (const published_load& l : published_loads)
    most = std::max({most, std::abs(m.accepted(l.verified) - l.accepted),
                     std::abs(m.accepted(published_drafts) - l.accepted_fixed)});
  return most;
}

load_result replay(const step_time& time, const draft_mixture& drafts, std::uint32_t sequences,
                   std::uint32_t steps, std::uint64_t seed) {
  engine::verify_planner_options options;
  options.lengths.trim_ms = time.s;
  options.warmup_blocks = options.explore_every = 0; // confidences are right from the start
  engine::verify_planner planner{options};
  for (std::uint32_t rows = 1; rows <= 2048; rows += std::max(1U, rows / 5))
    planner.profile_step(rows, time.of(rows));

  std::mt19937_64 random{seed};
  std::vector<std::array<float, published_drafts>> survivals(sequences);
  std::vector<verify_offer> offers(sequences);
  std::array<tally, published_drafts + 1> fixed{};
  tally planned;
  load_result out;
  out.sequences = sequences;
  for (std::uint32_t step = 0; step < steps; ++step) {
    for (std::uint32_t i = 0; i < sequences; ++i) {
      double product = 1;
      for (float& a : survivals[i]) {
        const double draw = static_cast<double>(random() >> 11) * 0x1p-53;
        product *= draw < drafts.p ? drafts.sure : drafts.unsure;
        a = static_cast<float>(product);
      }
      offers[i].wanted.mode = engine::speculation_mode::varlen;
      offers[i].limit = published_drafts;
      offers[i].survivals = survivals[i];
    }
    double tokens = sequences;
    for (std::uint32_t k = 0; k <= published_drafts; ++k) {
      if (k > 0)
        for (const auto& s : survivals)
          tokens += static_cast<double>(s[k - 1]);
      fixed[k].add(tokens, time.of((1 + k) * sequences));
    }
    const verify_plan& plan = planner.choose(offers, 0, sequences);
    const bool trimmed = plan.how == verify_plan::kind::trimmed;
    // The time of the model, not what the planner's table says.
    planned.add(plan.tokens, time.of(sequences + plan.drafts) + (trimmed ? time.s : 0));
    out.verified += plan.drafts;
    out.trimmed += trimmed ? 1 : 0;
  }
  for (std::uint32_t k = 1; k <= published_drafts; ++k)
    if (fixed[k].rate() > fixed[out.best_fixed].rate())
      out.best_fixed = k;
  const double rows = static_cast<double>(sequences) * steps;
  out.verified /= rows;
  out.trimmed /= steps;
  out.accepted = planned.tokens / rows - 1;
  out.gain = planned.rate() / fixed[published_drafts].rate() - 1;
  out.over_best = planned.rate() / fixed[out.best_fixed].rate() - 1;
  return out;
}

} // namespace di::test
