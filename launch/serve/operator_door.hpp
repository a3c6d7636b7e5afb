// SPDX-License-Identifier: Apache-2.0
// What an HTTP request of an operator means: which order, from whom, and with which status it is
// answered. Pure.
#pragma once

#include "messaging/base/result.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace di::serve {

/// Whether a path is that of an order: /admin/scale, drain, rejoin, kill, upgrade.
bool is_order(std::string_view path) noexcept;

/// The line for admin_desk. @param body  JSON object or empty  @param rank, ranks  of the query
/// @errors bad_argument
result<std::string> order_line(std::string_view order, std::string_view body,
                               const std::optional<std::string>& rank,
                               const std::optional<std::string>& ranks);

/// Why an order comes from a foreign web page; empty: it does not. A page that names this listener
/// by a name of its own (DNS rebinding) is foreign too.
/// @param origin, host  headers; empty: none  @param own  name that the listener was given
std::string foreign(std::string_view origin, std::string_view host, std::string_view own);

/// HTTP status of a line of admin_desk.
int status_of(std::string_view line);

} // namespace di::serve
