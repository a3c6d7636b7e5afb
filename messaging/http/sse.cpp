// SPDX-License-Identifier: Apache-2.0
// Server-sent events as bytes.
#include "messaging/http/sse.hpp"

namespace di::http {

namespace {

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  for (const char c : value)
    if (c != '\r' && c != '\n' && c != '\0')
      out.push_back(c);
  out.push_back('\n');
}

} // namespace

header_list sse_headers() {
  return {{"Content-Type", "text/event-stream"},
          {"Cache-Control", "no-cache"},
          {"X-Accel-Buffering", "no"}};
}

void append_sse_event(std::string& out, std::string_view data, std::string_view event,
                      std::string_view id) {
  if (!id.empty())
    append_field(out, "id: ", id);
  if (!event.empty())
    append_field(out, "event: ", event);
  for (;;) {
    const auto end = data.find_first_of("\r\n");
    out += "data: ";
    out += data.substr(0, end);
    out.push_back('\n');
    if (end == data.npos)
      break;
    const bool pair = data[end] == '\r' && end + 1 < data.size() && data[end + 1] == '\n';
    data.remove_prefix(end + (pair ? 2 : 1));
  }
  out.push_back('\n');
}

std::string sse_event(std::string_view data, std::string_view event, std::string_view id) {
  std::string out;
  out.reserve(data.size() + event.size() + id.size() + 32);
  append_sse_event(out, data, event, id);
  return out;
}

std::string sse_comment(std::string_view text) {
  std::string out;
  append_field(out, ": ", text);
  out.push_back('\n');
  return out;
}

std::string sse_retry(std::chrono::milliseconds wait) {
  return "retry: " + std::to_string(wait.count()) + "\n\n";
}

} // namespace di::http
