// SPDX-License-Identifier: Apache-2.0
// What `validate`, `plan` and `run` find out about a topology's files before any process starts.
#pragma once

#include "actors/control.hpp"
#include "engine/model/checkpoint.hpp"
#include "launch/topology.hpp"

#include <vector>

namespace di::launch {

/// The checkpoint of `model.path`. @errors bad_config, located at the key
result<engine::checkpoint> open_model(const topology& t);

/// Users' actors as the control process spawns them; defects are located at their keys.
std::vector<actors::user_actor> user_actors(const topology& t);

/// Reads the tokenizer; looks at each plugin: a readable shared object of this machine. Without
/// plugins the kinds, configuration and facts of all actors are checked too; with them only the
/// control process can, once it has loaded them. Loads nothing, starts nothing.
/// @errors bad_config: every defect, one line each, located
result<void> check_files(const topology& t);

} // namespace di::launch
