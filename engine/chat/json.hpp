// SPDX-License-Identifier: Apache-2.0
// JSON with the order of keys kept: requests, schemas and events show them as they were written.
#pragma once

#include <nlohmann/json.hpp>

namespace di::engine {

using json = nlohmann::ordered_json;

} // namespace di::engine
