// SPDX-License-Identifier: Apache-2.0
// Checks a loaded model against golden vectors of the reference: layer by layer with stored inputs,
// and end to end. Used by the golden tests and by `dilaunch checkpoint verify`.
#pragma once

#include "engine/model/golden_vectors.hpp"
#include "engine/model/loaded_model.hpp"
#include "kernels/kernels.hpp"
#include "messaging/base/result.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace di::engine {

/// What was compared and what was wrong.
struct verify_report {
  std::size_t tensors = 0;            ///< tensors compared on the layer level
  std::size_t rows = 0;               ///< rows of logits compared
  std::size_t steps = 0;              ///< greedy steps compared
  double worst_share = 0;             ///< of any layer-level tolerance
  std::string worst_tensor;           ///< where
  std::vector<std::string> failures;  ///< first ones first: file, layer, tensor, coordinate, share
  std::size_t failures_total = 0;     ///< failures beyond `failures_max` are only counted
  std::vector<std::string> summaries; ///< one line per file or statistic

  static constexpr std::size_t failures_max = 40;
  bool ok() const noexcept { return failures_total == 0; }
  void add_failure(std::string text);
};

/// What the reference allows; golden/model/README.md.
struct verify_limits {
  tolerance activations{0.01, 0.1, 0}; ///< bf16 outputs of a layer fed with stored inputs
  tolerance coefficients{0, 0, 1e-5};  ///< fp32: mHC, router weights
  double row_rms_median = 0.1;         ///< logits, end to end
  double row_rms_max = 0.5;
  double element_max = 2.0;
  double margin = 0.75; ///< greedy picks must agree where the margin exceeds this
};

/// The engine to check.
struct verify_subject {
  const loaded_model& model;
  const kernels::op_table& ops;
  kernels::stream& stream;
};

/// Runs the prefill of a capture and up to three decode steps; every operation is fed with the
/// stored inputs, and every named tensor is compared.
///
/// @param captures  tensors named L{l}.X, dec{k}.L{l}.X, final_h, ...
/// @param tokens    prompt of the capture
/// @param greedy    its continuation, for the decode steps
result<void> verify_layers(const verify_subject& subject, const golden_vectors& captures,
                           std::span<const std::int32_t> tokens,
                           std::span<const std::int32_t> greedy, verify_report& report,
                           const verify_limits& limits = {});

/// Teacher-forced logits and free-running greedy of all prompts of a logits file.
result<void> verify_logits(const verify_subject& subject, const golden_vectors& logits,
                           verify_report& report, const verify_limits& limits = {});

/// Everything of a folder: NAME.logits.safetensors and NAME.layers.PROMPT.safetensors beside it.
/// @errors ec::not_found (no golden vectors there), ec::bad_shape (of another model)
result<verify_report> verify_golden(const verify_subject& subject, const std::string& folder);

} // namespace di::engine
