// SPDX-License-Identifier: Apache-2.0
// Parts of the key table that stand in files of their own, for explain.cpp only.
#pragma once

#include "launch/explain.hpp"

#include <span>

namespace di::launch {

std::span<const key_row> port_keys();            ///< below cluster.ports
std::span<const key_row> gateway_role_keys();    ///< roles.gateway and below
std::span<const key_row> gateway_section_keys(); ///< gateway and below

} // namespace di::launch
