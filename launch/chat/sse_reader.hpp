// SPDX-License-Identifier: Apache-2.0
// Server-sent events out of bytes, cut anywhere. Pure.
#pragma once

#include "messaging/base/result.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace di::launch {

struct sse_message {
  std::string event; ///< empty: message
  std::string data;  ///< lines joined by \n
  std::string id;    ///< last one given, also by an earlier event
};

/// Lines end with CR, LF or CRLF; comments and unknown fields are skipped, an event without data is
/// none. @source WHATWG HTML, "Interpreting an event stream"
class sse_reader {
public:
  static constexpr std::size_t event_bytes_max = 32U << 20U;

  /// @return the events that are complete now. @errors limit_exceeded
  result<std::vector<sse_message>> feed(std::string_view bytes);

private:
  void take_line(std::vector<sse_message>& out);

  std::string line_;
  sse_message next_;
  bool has_data_ = false;
  bool after_cr_ = false; ///< an LF now belongs to the CR before
  bool first_ = true;     ///< a byte order mark may come
};

} // namespace di::launch
