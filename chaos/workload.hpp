// SPDX-License-Identifier: Apache-2.0
// The requests of a plan as lines for `dilaunch run`. The same plan and model give the same lines.
#pragma once

#include "chaos/plan.hpp"

#include <cstdint>
#include <string>

namespace di::chaos {

/// What the lines must know of the model.
struct model_facts {
  std::uint32_t vocab = 0; ///< token ids below it
  bool has_words = false;  ///< a tokenizer: prompts and stop strings may be text
};

/// @param folder  of a checkpoint. @errors io_error, bad_format
result<model_facts> read_model_facts(const std::string& folder, const std::string& tokenizer);

/// JSON lines; every line has its seed and wants token times. Lines of phase 1 are those `after`.
std::string make_workload(const workload& w, const model_facts& model);

} // namespace di::chaos
