// SPDX-License-Identifier: Apache-2.0
// The model's text path as a step_runner: embedding, layers, head.
#pragma once

#include "engine/model/loaded_model.hpp"
#include "engine/model/step.hpp"
#include "engine/model/step_probe.hpp"
#include "kernels/kernels.hpp"

#include <memory>
#include <span>

namespace di::engine {

/// Runs steps of a loaded model. Row results depend on the row's token, position and sequence only,
/// not on what else is in the step.
class forward : public step_runner {
public:
  /// Shows every named tensor of the following steps to `probe`; null detaches. With a probe all
  /// rows are scored by the indexers, also where the selection would be "all" anyway.
  virtual void attach_probe(step_probe* probe) = 0;
};

/// @param model, ops, stream  outlive the runner; the stream is used during calls only
std::unique_ptr<forward> make_forward(const loaded_model& model, const kernels::op_table& ops,
                                      kernels::stream& stream);

} // namespace di::engine
