// SPDX-License-Identifier: Apache-2.0
// Reading orders.
#include "launch/serve/operator_door.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>

namespace di::serve {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 5> orders{"scale", "drain", "rejoin", "kill", "upgrade"};
constexpr std::string_view prefix = "/admin/";

/// "[::1]:9000" -> "[::1]", "localhost:9000" -> "localhost"
std::string_view name_of(std::string_view host) {
  if (host.starts_with('['))
    return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool is_address(std::string_view name) {
  return name.starts_with('[')
         || (!name.empty() && name.find_first_not_of("0123456789.") == std::string_view::npos);
}

} // namespace

bool is_order(std::string_view path) noexcept {
  return path.starts_with(prefix)
         && std::find(orders.begin(), orders.end(), path.substr(prefix.size())) != orders.end();
}

result<std::string> order_line(std::string_view order, std::string_view body,
                               const std::optional<std::string>& rank,
                               const std::optional<std::string>& ranks) {
  json line{{"command", order}};
  if (order == "upgrade")
    return line.dump();
  const char* field = order == "scale" ? "ranks" : "rank";
  const auto& asked = order == "scale" ? ranks : rank;
  if (asked) {
    std::uint32_t n = 0;
    const auto* end = asked->data() + asked->size();
    if (const auto read = std::from_chars(asked->data(), end, n);
        read.ec != std::errc{} || read.ptr != end)
      return fail(ec::bad_argument, "{}: a whole number is needed", field);
    line[field] = n;
    return line.dump();
  }
  const auto j = json::parse(body, nullptr, false);
  if (!j.is_object() || !j.contains(field))
    return fail(ec::bad_argument, "an object with {} is needed, or ?{}=N", field, field);
  line[field] = j[field]; // its type is checked by the desk
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string foreign(std::string_view origin, std::string_view host, std::string_view own) {
  if (origin.empty())
    return {}; // no browser
  const auto at = origin.find("://");
  if (at == std::string_view::npos || host.empty() || origin.substr(at + 3) != host)
    return "orders of other web pages are not taken";
  const auto name = name_of(host);
  if (name == "localhost" || name == own || is_address(name))
    return {};
  return "orders are taken at an address or localhost";
}

int status_of(std::string_view line) {
  const auto j = json::parse(line, nullptr, false);
  if (!j.is_object())
    return 500;
  if (j.value("ok", false))
    return 200;
  const auto code = j.value("code", "internal");
  if (code == "bad_argument")
    return 400;
  if (code == "not_found")
    return 404;
  if (code == "deadline_exceeded")
    return 504;
  return code == "internal" ? 500 : 503;
}

} // namespace di::serve
