// SPDX-License-Identifier: Apache-2.0
// A step_runner or expert_runner together with all that it stands on: model, kernels, stream.
#pragma once

#include "engine/model/draft_runner.hpp"
#include "engine/model/loaded_model.hpp"
#include "engine/model/step.hpp"

#include <memory>

namespace di::engine {

/// What one rank computes with: steps, and drafts if the model has draft layers (else null). Both
/// use one stream, so they belong to one thread.
struct rank_runners {
  std::shared_ptr<step_runner> steps;
  std::shared_ptr<draft_runner> drafts;
};

/// @param threads  threads of its own stream; at least 1
/// @return         keep model and stream alive; the fastest kernels of this machine
rank_runners own_rank_runners(std::shared_ptr<const loaded_model> model, unsigned threads);

/// @param threads  threads of its own stream; at least 1
/// @return         keeps model and stream alive; the fastest kernels of this machine
std::shared_ptr<expert_runner> own_expert_runner(std::shared_ptr<const loaded_model> model,
                                                 unsigned threads);

} // namespace di::engine
