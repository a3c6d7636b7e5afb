// SPDX-License-Identifier: Apache-2.0
// A small HTTP client: one request on one connection, plain or TLS, that somebody may cancel.
#pragma once

#include "launch/chat/http_answer.hpp"
#include "messaging/base/result.hpp"

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace di::launch {

struct http_url {
  bool tls = false;
  std::string host; ///< name or address, without brackets
  std::string port;
  std::string path; ///< without a slash at its end; may be empty
};
/// "http://localhost:8000/x"; the scheme may be left out. @errors bad_argument
result<http_url> parse_url(std::string_view text);

struct http_call {
  std::string method = "GET";
  std::string target; ///< path and query
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

struct http_client_options {
  bool check_certificate = true;
  std::chrono::milliseconds connect{10'000};
  std::chrono::milliseconds silence{600'000}; ///< no byte for so long: given up
  int cancel_fd = -1;                         ///< readable: stop; -1: none
};

/// Sends the call and hands on the body as it comes. @param body  gets parts with the answer's
/// state; false: enough, hang up
/// @errors not_found (no such host), unavailable (nobody listens), io_error, bad_format,
/// deadline_exceeded, refused (certificate), cancelled
result<http_answer>
exchange_http(const http_url& to, const http_call& call, const http_client_options& options,
              const std::function<bool(const http_answer&, std::string_view)>& body);

} // namespace di::launch
