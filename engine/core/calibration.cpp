// SPDX-License-Identifier: Apache-2.0
// Histograms of outcomes by logit, their quality numbers, and Platt's fit through them.
#include "engine/core/calibration.hpp"

#include <algorithm>
#include <cmath>

namespace di::engine {

namespace {

constexpr double logit_range = 8; ///< histogram over [-8, 8]; further out counts at the ends
constexpr double slope_min = 0.05, slope_max = 20, offset_max = 20;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-std::clamp(x, -60.0, 60.0)));
}

} // namespace

calibration::calibration(std::uint32_t positions, calibration_options options)
    : options_{options}, records_(std::clamp(positions, 1U, drafts_max)) {
}

double calibration::confidence(std::size_t position, double logit) const noexcept {
  if (std::isnan(logit) || position >= records_.size())
    return 0;
  const record& r = records_[position];
  return sigmoid(r.slope * std::clamp(logit, -60.0, 60.0) + r.offset);
}

void calibration::survivals(std::span<const float> logits, std::span<float> out) const noexcept {
  double product = 1;
  for (std::size_t k = 0; k < std::min(logits.size(), out.size()); ++k) {
    product *= confidence(k, static_cast<double>(logits[k]));
    out[k] = static_cast<float>(product);
  }
}

void calibration::observe(std::span<const float> logits, std::uint32_t accepted) {
  const std::size_t n = std::min(logits.size(), records_.size());
  if (n == 0)
    return; // nothing was drafted: nothing is learnt, and what is known does not age
  for (std::size_t k = 0; k < n; ++k) {
    record& r = records_[k];
    ++r.verified;
    if (k > accepted || std::isnan(logits[k]))
      continue; // a draft before it was wrong: its own outcome says nothing
    ++r.reached;
    r.accepted += k < accepted ? 1 : 0;
    const double logit = std::clamp(static_cast<double>(logits[k]), -logit_range, logit_range);
    const auto at = static_cast<std::size_t>((logit + logit_range) / (2 * logit_range) * bins);
    bin& b = r.histogram[std::min(at, bins - 1)];
    b.count += weight_;
    b.accepted += k < accepted ? weight_ : 0;
    b.logits += weight_ * logit;
  }
  weight_ /= options_.forget;
  if (weight_ > 1e9)
    rescale();
  // The more is known, the less a block changes.
  const std::uint64_t due =
      std::max<std::uint64_t>(options_.refit_blocks, std::min<std::uint64_t>(++blocks_ / 8, 512));
  if (++since_fit_ >= due)
    fit();
}

void calibration::rescale() {
  for (record& r : records_)
    for (bin& b : r.histogram)
      b = {b.count / weight_, b.accepted / weight_, b.logits / weight_};
  weight_ = 1;
}

void calibration::fit() {
  since_fit_ = 0;
  for (record& r : records_)
    fit(r);
}

/// Newton's method on the log likelihood of (slope, offset), pulled towards (1, 0).
void calibration::fit(record& r) const {
  double slope = r.slope, offset = r.offset;
  const double pull = options_.prior_outcomes / 4; // an outcome at p = 1/2 curves by 1/4
  for (int step = 0; step < 20; ++step) {
    double gs = pull * (slope - 1), go = pull * offset;
    double hss = pull, hso = 0, hoo = pull;
    for (const bin& b : r.histogram) {
      if (b.count <= 0)
        continue;
      const double n = b.count / weight_, x = b.logits / b.count;
      const double p = sigmoid(slope * x + offset);
      const double off = n * p - b.accepted / weight_, curve = n * p * (1 - p);
      gs += off * x;
      go += off;
      hss += curve * x * x;
      hso += curve * x;
      hoo += curve;
    }
    const double det = hss * hoo - hso * hso; // > 0: pull on the diagonal
    const double ds = std::clamp((hoo * gs - hso * go) / det, -1.0, 1.0);
    const double d_o = std::clamp((hss * go - hso * gs) / det, -1.0, 1.0);
    slope = std::clamp(slope - ds, slope_min, slope_max); // rising: it keeps the order
    offset = std::clamp(offset - d_o, -offset_max, offset_max);
    if (std::abs(ds) + std::abs(d_o) < 1e-6)
      break;
  }
  r.slope = slope;
  r.offset = offset;
}

position_quality calibration::quality(std::size_t position) const {
  const record& r = records_.at(position);
  position_quality q;
  q.verified = r.verified;
  q.reached = r.reached;
  q.accepted = r.accepted;
  q.slope = r.slope;
  q.offset = r.offset;
  double n = 0, hits = 0, below = 0, pairs = 0; // below: misses in bins under this one
  for (const bin& b : r.histogram) {
    if (b.count <= 0)
      continue;
    const double misses = b.count - b.accepted, x = b.logits / b.count;
    const double raw = sigmoid(x), fitted = sigmoid(r.slope * x + r.offset);
    n += b.count;
    hits += b.accepted;
    q.confidence += b.count * fitted;
    q.ece_raw += std::abs(b.count * raw - b.accepted);
    q.ece += std::abs(b.count * fitted - b.accepted);
    q.brier_raw += b.accepted * (1 - raw) * (1 - raw) + misses * raw * raw;
    q.brier += b.accepted * (1 - fitted) * (1 - fitted) + misses * fitted * fitted;
    pairs += b.accepted * (below + misses / 2);
    below += misses;
  }
  if (n <= 0)
    return q;
  for (double* mean : {&q.confidence, &q.ece_raw, &q.ece, &q.brier_raw, &q.brier})
    *mean /= n;
  q.rate = hits / n;
  q.auc = hits > 0 && below > 0 ? pairs / (hits * below) : 0.5;
  return q;
}

std::size_t temperature_bucket(double temperature) noexcept {
  if (!(temperature >= 1e-5))
    return 0;
  return temperature <= 0.75 ? 1 : temperature <= 1.05 ? 2 : 3;
}

} // namespace di::engine
