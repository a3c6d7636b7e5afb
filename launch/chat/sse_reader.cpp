// SPDX-License-Identifier: Apache-2.0
// Lines to events.
#include "launch/chat/sse_reader.hpp"

namespace di::launch {

result<std::vector<sse_message>> sse_reader::feed(std::string_view bytes) {
  std::vector<sse_message> out;
  for (const char c : bytes) {
    const bool skip = c == '\n' && after_cr_;
    after_cr_ = c == '\r';
    if (skip)
      continue;
    if (c == '\r' || c == '\n')
      take_line(out);
    else
      line_ += c;
    if (line_.size() + next_.data.size() > event_bytes_max)
      return fail(ec::limit_exceeded, "an event of more than {} bytes", event_bytes_max);
  }
  return out;
}

void sse_reader::take_line(std::vector<sse_message>& out) {
  std::string line = std::exchange(line_, {});
  if (std::exchange(first_, false) && line.starts_with("\xEF\xBB\xBF"))
    line.erase(0, 3);
  if (line.empty()) {
    if (std::exchange(has_data_, false)) {
      next_.data.pop_back(); // the last line's end
      out.push_back(next_);
    }
    next_.event.clear();
    next_.data.clear();
    return;
  }
  const auto colon = line.find(':');
  const std::string_view field = std::string_view{line}.substr(0, colon);
  std::string_view value =
      colon == std::string::npos ? std::string_view{} : std::string_view{line}.substr(colon + 1);
  if (value.starts_with(' '))
    value.remove_prefix(1);
  if (field == "data") {
    next_.data.append(value).push_back('\n');
    has_data_ = true;
  } else if (field == "event") {
    next_.event = value;
  } else if (field == "id" && value.find('\0') == std::string_view::npos) {
    next_.id = value;
  }
}

} // namespace di::launch
