// SPDX-License-Identifier: Apache-2.0
// The complete list of tensors that a checkpoint of a given configuration holds.
#pragma once

#include "engine/model/spec.hpp"
#include "engine/model/tensor.hpp"

#include <string>
#include <vector>

namespace di::engine {

/// What a tensor is for; sums by this are what `checkpoint check` prints.
enum class tensor_role : std::uint8_t { dense, routed_expert, engram_table, vision };

struct expected_tensor {
  std::string name; ///< canonical: no "model." prefix, "head" and not "lm_head"
  dtype type = dtype::bfloat16;
  tensor_shape shape;
  tensor_role role = tensor_role::dense;
  /// Group that stays in one shard: 0 = globals and vision, 1 + l = layer l (drafts follow).
  std::int64_t unit = 0;
  bool optional = false; ///< `gate.bias_vl` of a model without vision
};

/// In order: globals, layers, draft layers, vision.
///
/// @pre     `spec` came from parse_model_spec()
/// @source  spec of the model, 3.3; shapes as formulas of the configuration
std::vector<expected_tensor> expected_tensors(const model_spec& spec);

/// A stored type that may stand for the expected one: U8 for packed codes and block scales.
bool type_fits(dtype expected, dtype found) noexcept;

} // namespace di::engine
