// SPDX-License-Identifier: Apache-2.0
// The name of what must agree for two computations to agree bit for bit.
#pragma once

#include "engine/model/loaded_model.hpp"

#include <string>

namespace di::engine {

/// Contract id: kernels, device family, weights, rope tables. Ranks of one group have the same one;
/// KV, windows and cached prefixes of another are never used.
std::string contract_id(const loaded_model& model);

} // namespace di::engine
