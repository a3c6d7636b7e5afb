// SPDX-License-Identifier: Apache-2.0
// From a draft's confidence to the chance that it is accepted: what is verified and accepted per
// position, how far confidences can be trusted, and a fit that corrects them as outcomes come.
//
// Position k (from 0) is verified if the step held its row, and its outcome counts if all drafts
// before it were accepted: confidences are conditional. A survival is the running product.
// @source decode.md A.2
#pragma once

#include "engine/core/speculation_choice.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace di::engine {

/// One position's record; plain numbers for metrics.
struct position_quality {
  std::uint64_t verified = 0;      ///< drafts whose rows were computed
  std::uint64_t reached = 0;       ///< of them, all before accepted: outcomes that say something
  std::uint64_t accepted = 0;      ///< of them
  double confidence = 0;           ///< mean of the corrected confidences of reached ones, decayed
  double rate = 0;                 ///< share of reached ones that were accepted, decayed
  double ece_raw = 0, ece = 0;     ///< expected calibration error before and after the fit
  double brier_raw = 0, brier = 0; ///< mean squared error of the confidence
  double auc = 0.5;             ///< order quality, from the histogram; the fit does not change it
  double slope = 1, offset = 0; ///< corrected = sigmoid(slope * logit + offset)
};

struct calibration_options {
  double forget = 0.9998;          ///< per block, of the histograms
  std::uint32_t refit_blocks = 32; ///< blocks between fits at first; at most 512 later
  double prior_outcomes = 16;      ///< weight of slope 1, offset 0
};

/// Corrects the logits of a confidence head, position by position. One per (drafter, temperature
/// bucket). Owned by RANK, used on its thread only.
class calibration {
public:
  static constexpr std::size_t bins = 32;

  explicit calibration(std::uint32_t positions = 5, calibration_options options = {});

  /// The chance that draft k is accepted given that those before it are. NaN counts as -inf: 0.
  double confidence(std::size_t position, double logit) const noexcept;
  /// Running products into out[0, logits.size()).
  void survivals(std::span<const float> logits, std::span<float> out) const noexcept;

  /// One verified block; without drafts nothing was learned.
  /// @param logits    of the drafts that were verified, in order
  /// @param accepted  how many of them matched, <= logits.size()
  void observe(std::span<const float> logits, std::uint32_t accepted);
  /// Fits now instead of after refit_blocks.
  void fit();

  position_quality quality(std::size_t position) const;

private:
  struct bin {
    double count = 0, accepted = 0, logits = 0; ///< decayed sums
  };
  struct record {
    std::uint64_t verified = 0, reached = 0, accepted = 0;
    std::array<bin, bins> histogram{};
    double slope = 1, offset = 0;
  };
  void fit(record& r) const;
  void rescale();

  calibration_options options_;
  std::vector<record> records_;
  std::uint64_t blocks_ = 0, since_fit_ = 0;
  double weight_ = 1; ///< of the next outcome: grows instead of decaying every bin
};

/// Temperature buckets with separate calibrations: greedy, up to 0.75, up to 1.05, above.
inline constexpr std::size_t temperature_buckets = 4;
std::size_t temperature_bucket(double temperature) noexcept;

} // namespace di::engine
