// SPDX-License-Identifier: Apache-2.0
// Reading and writing traceparent.
#include "launch/serve/trace_context.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::serve {
namespace {

constexpr std::size_t length = 55; ///< of version 00

bool is_hex(std::string_view s) {
  return std::all_of(s.begin(), s.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool all_zero(std::string_view s) {
  return s.find_first_not_of('0') == std::string_view::npos;
}

std::uint64_t mixed(std::uint64_t x) { // splitmix64
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

} // namespace

std::string trace_context::traceparent() const {
  return fmt::format("00-{}-{}-{}", trace_id, parent_id, sampled ? "01" : "00");
}

std::optional<trace_context> parse_traceparent(std::string_view header) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!header.empty() && blank(header.front()))
    header.remove_prefix(1);
  while (!header.empty() && blank(header.back()))
    header.remove_suffix(1);
  if (header.size() < length || header[2] != '-' || header[35] != '-' || header[52] != '-')
    return std::nullopt;
  const auto version = header.substr(0, 2), trace = header.substr(3, 32),
             parent = header.substr(36, 16), flags = header.substr(53, 2);
  if (!is_hex(version) || !is_hex(trace) || !is_hex(parent) || !is_hex(flags) || version == "ff"
      || all_zero(trace) || all_zero(parent))
    return std::nullopt;
  if (version == "00" ? header.size() != length : header.size() > length && header[length] != '-')
    return std::nullopt;
  const char low = flags[1];
  const bool sampled = ((low <= '9' ? low - '0' : low - 'a' + 10) & 1) != 0;
  return trace_context{std::string{trace}, std::string{parent}, sampled};
}

trace_context continued(const std::optional<trace_context>& from, std::uint64_t seed) {
  const std::uint64_t high = mixed(seed), low = mixed(high), span = mixed(low) | 1U;
  return {from ? from->trace_id : fmt::format("{:016x}{:016x}", high | 1U, low),
          fmt::format("{:016x}", span), from && from->sampled};
}

} // namespace di::serve
