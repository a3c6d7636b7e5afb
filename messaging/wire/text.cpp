// SPDX-License-Identifier: Apache-2.0
#include "messaging/wire/text.hpp"

#include <fmt/format.h>

#include <iterator>

namespace di::wire {

std::string_view field_names::next() {
  const std::size_t comma = left_.find(',');
  std::string_view one = left_.substr(0, comma);
  left_.remove_prefix(comma == std::string_view::npos ? left_.size() : comma + 1);
  if (const std::size_t dot = one.rfind('.'); dot != std::string_view::npos)
    one.remove_prefix(dot + 1);
  while (!one.empty() && (one.front() == ' ' || one.front() == '\n'))
    one.remove_prefix(1);
  while (!one.empty() && (one.back() == ' ' || one.back() == '\n'))
    one.remove_suffix(1);
  return one;
}

namespace detail {

void append_unsigned(std::string& out, std::uint64_t v) {
  out += std::to_string(v);
}

void append_signed(std::string& out, std::int64_t v) {
  out += std::to_string(v);
}

void append_double(std::string& out, double v, int digits) {
  fmt::format_to(std::back_inserter(out), "{:.{}g}", v, digits);
}

void append_quoted(std::string& out, std::string_view v) {
  out += '"';
  for (const char c : v.substr(0, limits::printed_string_bytes_max)) {
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f)
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  out += '"';
  if (v.size() > limits::printed_string_bytes_max)
    fmt::format_to(std::back_inserter(out), "... {} bytes", v.size());
}

void append_size(std::string& out, std::size_t bytes) {
  fmt::format_to(std::back_inserter(out), "<{} bytes>", bytes);
}

void append_cut(std::string& out, std::size_t elements) {
  fmt::format_to(std::back_inserter(out), "... {} in all", elements);
}

} // namespace detail
} // namespace di::wire
