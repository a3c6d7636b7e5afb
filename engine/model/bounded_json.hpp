// SPDX-License-Identifier: Apache-2.0
// JSON from untrusted files: bounded in size and depth, without duplicate keys, without exceptions.
#pragma once

#include "messaging/base/result.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <string_view>

namespace di::engine {

struct json_limits {
  std::size_t bytes_max = std::size_t{16} << 20; ///< [bytes] of text
  std::size_t depth_max = 16;                    ///< [levels] of arrays and objects
};

/// Parses one JSON text. Memory grows with the bytes actually read, never with a number inside
/// them.
///
/// @param file   named in errors
/// @errors       ec::bad_format (syntax with its byte, too deep), ec::duplicate (a key twice in one
///               object), ec::limit_exceeded (too long)
result<nlohmann::json> parse_bounded_json(std::string_view text, std::string_view file,
                                          const json_limits& limits = {});

} // namespace di::engine
