// SPDX-License-Identifier: Apache-2.0
// JSON as it goes out: to clients, to other processes, into files.
#pragma once

#include <string>

namespace di {

/// On one line. Bytes that are no UTF-8 become U+FFFD.
/// @tparam Json  nlohmann's, whichever order its keys keep
template <class Json>
std::string json_text(const Json& j) {
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

} // namespace di
