// SPDX-License-Identifier: Apache-2.0
// Rope frequencies with and without YaRN, computed once per model.
#include "engine/model/loaded_model.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace di::engine {

namespace {

/// Which of the dims/2 frequencies turns `rotations` times over the original context.
double corrected_index(const rope_spec& rope, double rotations) {
  const auto original = static_cast<double>(rope.scaling.original_max_position_embeddings);
  return static_cast<double>(rope.dims) * std::log(original / (2 * std::numbers::pi * rotations))
         / (2 * std::log(rope.theta));
}

} // namespace

std::vector<float> rope_frequencies(const rope_spec& rope) {
  std::vector<float> freq(static_cast<std::size_t>(rope.dims / 2));
  for (std::size_t i = 0; i < freq.size(); ++i) {
    // Rounded to fp32 after the power and after the division, so the last bit of the double power
    // (a library function, like the logarithm above) hardly ever shows. Ranks compare the tables'
    // bits when they announce themselves (contract id), so hosts that differ refuse each other.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.dims);
    const auto power = static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
    freq[i] = 1.0f / power;
  }
  if (!rope.yarn)
    return freq;
  const double low = std::max(std::floor(corrected_index(rope, rope.scaling.beta_fast)), 0.0);
  const double high = std::min(std::ceil(corrected_index(rope, rope.scaling.beta_slow)),
                               static_cast<double>(rope.dims - 1));
  const auto factor = static_cast<float>(rope.scaling.factor);
  const auto span = static_cast<float>(std::max(high - low, 1e-3));
  for (std::size_t i = 0; i < freq.size(); ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / span, 0.0f, 1.0f);
    const float kept = 1.0f - ramp;
    freq[i] = freq[i] / factor * (1.0f - kept) + freq[i] * kept;
  }
  return freq;
}

} // namespace di::engine
