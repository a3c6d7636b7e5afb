// SPDX-License-Identifier: Apache-2.0
// The strict form of a JSON schema: few keywords, every property required, nothing additional.
#pragma once

#include "engine/chat/json.hpp"

#include <string>
#include <variant>

namespace di::engine {

/// The normalised schema, or why it has none.
///
/// @param keep_definitions   `$defs` and `definitions` of the top level are normalised and kept
///                           (the reference drops them, so that each `$ref` dangles)
/// @source   prompt encoding specification, section 5
std::variant<json, std::string> strict_schema(const json& schema, bool keep_definitions);

} // namespace di::engine
