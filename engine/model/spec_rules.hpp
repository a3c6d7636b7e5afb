// SPDX-License-Identifier: Apache-2.0
// The rules that a configuration must obey, apart from how it was spelled. Private to engine/model.
#pragma once

#include "engine/model/problems.hpp"
#include "engine/model/spec.hpp"

#include <string_view>

namespace di::engine {

/// Checks every rule between fields and computes the Engram constants. Adds one defect per broken
/// rule; safe for any field values.
void check_model_rules(model_spec& spec, std::string_view file, problem_list& problems);

} // namespace di::engine
