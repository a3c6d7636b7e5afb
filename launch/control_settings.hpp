// SPDX-License-Identifier: Apache-2.0
// What the topology says to DIRECTORY, MEMBERSHIP and KEEPER.
#pragma once

#include "engine/core/directory_core.hpp"
#include "engine/core/keeper_core.hpp"
#include "launch/boot.hpp"
#include "launch/plan.hpp"
#include "launch/topology.hpp"

namespace di::launch {

/// A control process that is started again waits for the ranks that run, and for no more.
engine::directory_options directory_of(const topology& t, const boot_config& boot);
engine::membership_options membership_of(const topology& t);
/// @param life  of the control process; seeds the jitter of restarts
engine::keeper_options keeper_of(const topology& t, const cluster_plan& plan, incarnation life);

} // namespace di::launch
