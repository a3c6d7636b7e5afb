// SPDX-License-Identifier: Apache-2.0
// Status line and header fields of an answer as bytes. Pure but for the wall clock of Date.
#pragma once

#include "messaging/http/exchange.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace di::http {

/// "Not Found" for 404; "Unknown" for what has no name.
std::string_view reason_phrase(int status) noexcept;

/// How the body behind the head is delimited.
enum class framing : std::uint8_t {
  length,  ///< Content-Length
  chunked, ///< Transfer-Encoding: chunked
  close,   ///< until the connection closes (HTTP/1.0 streams)
  none,    ///< the status has no body (1xx, 204, 304)
};

/// Appends the head with its empty line. Fields of `headers` that are the server's are left out,
/// as are names that are no token; control characters of values become blanks.
void append_head(std::string& out, int status, const header_list& headers, framing body,
                 std::size_t length, bool keep_alive, bool old_client);

/// The value of Date for now; made anew once a second per thread.
std::string_view http_date();

} // namespace di::http
