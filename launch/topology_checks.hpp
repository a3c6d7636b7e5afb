// SPDX-License-Identifier: Apache-2.0
// What no single key of a topology can show: sums, ports, paths. Used by read_topology only.
#pragma once

#include "launch/topology.hpp"

namespace di::launch {

/// Fills what follows from other keys (name, ep) and adds every contradiction to `problems`.
void check_topology(topology& t, const yaml_node& root, std::vector<problem>& problems);

} // namespace di::launch
