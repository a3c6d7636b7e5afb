// SPDX-License-Identifier: Apache-2.0
// Finds the end of a request's header, line by line.
#include "messaging/http/head_scanner.hpp"

#include "messaging/http/request.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::http {

namespace {

/// [bytes] of a method; longer ones are no HTTP.
constexpr std::size_t method_bytes_max = 32;

} // namespace

head_scanner::state head_scanner::refuse(int status, std::string code, std::string detail) {
  refusal_ = {status, std::move(code), std::move(detail)};
  return state::refused;
}

head_scanner::state head_scanner::scan(std::string_view head) {
  head = head.substr(0, bounds_.header_bytes);
  for (;;) {
    const auto end = head.find('\n', scanned_);
    if (end == head.npos)
      break;
    if (end == line_begin_ || head[end - 1] != '\r')
      return refuse(400, "bad_line_ending", fmt::format("line {} ends without CR", lines_ + 1));
    const auto line = head.substr(line_begin_, end - 1 - line_begin_);
    scanned_ = line_begin_ = end + 1;
    if (line.empty())
      return state::whole;
    if (check_line(line) == state::refused)
      return state::refused;
    ++lines_;
  }
  scanned_ = head.size();
  if (lines_ == 0 && check_prefix(head) == state::refused)
    return state::refused;
  if (head.size() >= bounds_.header_bytes)
    return refuse(431, "header_too_large",
                  fmt::format("the header has more than {} bytes", bounds_.header_bytes));
  return state::more;
}

head_scanner::state head_scanner::check_line(std::string_view line) {
  for (const char c : line)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f)
      return refuse(400, "bad_header", fmt::format("control character in line {}", lines_ + 1));
  if (lines_ == 0)
    return check_prefix(line);
  if (line[0] == ' ' || line[0] == '\t')
    return refuse(400, "bad_header", fmt::format("line {} is folded", lines_ + 1));
  if (lines_ > bounds_.header_fields)
    return refuse(431, "too_many_headers",
                  fmt::format("more than {} header fields", bounds_.header_fields));
  return state::more;
}

/// Refuses what can no longer become a request line before the rest has come.
head_scanner::state head_scanner::check_prefix(std::string_view head) {
  const auto blank = head.find_first_of(" \r");
  const auto method = head.substr(0, blank);
  if (method.size() > method_bytes_max || blank == 0
      || !std::all_of(method.begin(), method.end(), token_char))
    return refuse(400, "bad_request_line", "what came does not begin with an HTTP method");
  if (blank == head.npos)
    return state::more;
  const auto rest = head.substr(blank + 1);
  if (rest.substr(0, rest.find_first_of(" \r")).size() > bounds_.target_bytes)
    return refuse(414, "target_too_long",
                  fmt::format("the request target has more than {} bytes", bounds_.target_bytes));
  return state::more;
}

} // namespace di::http
