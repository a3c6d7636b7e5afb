// SPDX-License-Identifier: Apache-2.0
// Server-sent events as bytes. Pure.
//
//   id: resp_1:12          (if given)
//   event: message_start   (if given)
//   data: {"type":...}     (one line per line of the data)
//   <empty line>
#pragma once

#include "messaging/http/request.hpp"

#include <chrono>
#include <string>
#include <string_view>

namespace di::http {

/// Content-Type: text/event-stream; Cache-Control: no-cache; X-Accel-Buffering: no.
header_list sse_headers();

/// Appends one event. CR, LF and NUL in `event` and `id` are left out: they would end the line.
void append_sse_event(std::string& out, std::string_view data, std::string_view event = {},
                      std::string_view id = {});
std::string sse_event(std::string_view data, std::string_view event = {}, std::string_view id = {});

/// ": text", which clients ignore; keeps connections and proxies awake.
std::string sse_comment(std::string_view text = "keep-alive");

/// How long a client waits before it reconnects.
std::string sse_retry(std::chrono::milliseconds wait);

} // namespace di::http
