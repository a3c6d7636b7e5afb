// SPDX-License-Identifier: Apache-2.0
// What the topology says to MEMBERSHIP and KEEPER.
#pragma once

#include "engine/core/keeper_core.hpp"
#include "launch/plan.hpp"
#include "launch/topology.hpp"

namespace di::launch {

engine::membership_options membership_of(const topology& t);
/// @param life  of the control process; seeds the jitter of restarts
engine::keeper_options keeper_of(const topology& t, const cluster_plan& plan, incarnation life);

} // namespace di::launch
