// SPDX-License-Identifier: Apache-2.0
// Routed experts on the CPU, and the loop that runs a step whose experts are all at hand.
#pragma once

#include "engine/model/loaded_model.hpp"
#include "engine/model/step.hpp"
#include "kernels/kernels.hpp"
#include "messaging/base/result.hpp"

#include <memory>
#include <span>
#include <vector>

namespace di::engine {

/// Computes experts from the checkpoint's pages, as two grouped linears per call.
///
/// @param model   outlives the runner; only the pages of experts that are asked for are touched
/// @param ops     which implementation; all of them give the same bits
/// @param stream  used during run() only; not shared with another thread
std::unique_ptr<expert_runner> make_expert_runner(const loaded_model& model,
                                                  const kernels::op_table& ops,
                                                  kernels::stream& stream);

/// Groups what a demand asks for by expert, ascending; one job per expert that is wanted.
///
/// @param jobs  reused: its vectors keep their room
/// @return      number of jobs filled, at the front of `jobs`
std::size_t group_by_expert(const expert_demand& demand, std::vector<expert_job>& jobs);

/// Runs whole steps with experts that live here (EP 1, tests, benchmarks).
class local_expert_loop {
public:
  local_expert_loop(step_runner& steps, expert_runner& experts)
      : steps_{steps}, experts_{experts} {}

  /// Runs one step to its end; then steps.logits() is valid.
  /// @errors those of start(), resume() and run()
  result<void> run(std::span<const step_segment> segments);
  /// Answers one demand. @errors those of the expert runner
  result<void> answer(const expert_demand& demand);

private:
  step_runner& steps_;
  expert_runner& experts_;
  std::vector<expert_job> jobs_;
};

} // namespace di::engine
