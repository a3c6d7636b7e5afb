// SPDX-License-Identifier: Apache-2.0
// Statuses, types and codes; the two error bodies.
#include "launch/serve/api_error.hpp"

#include "engine/chat/json.hpp"
#include "messaging/base/utf8.hpp"

#include <utility>

namespace di::serve {
namespace {

/// [bytes] of a message that a client gets: an error must not echo a request.
constexpr std::size_t message_bytes_max = 2'000;
/// [ms] until a client may ask again if the cluster names no time.
constexpr std::uint64_t ask_again_default_ms = 1'000;

struct status_words {
  int status;
  std::string_view type, code, anthropic;
};

constexpr status_words words_of[] = {
    {400, "invalid_request_error", "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "invalid_api_key", "authentication_error"},
    {403, "permission_error", "permission_denied", "permission_error"},
    {404, "invalid_request_error", "not_found", "not_found_error"},
    {405, "invalid_request_error", "method_not_allowed", "invalid_request_error"},
    {408, "timeout_error", "request_timeout", "timeout_error"},
    {409, "conflict_error", "conflict", "invalid_request_error"},
    {411, "invalid_request_error", "length_required", "invalid_request_error"},
    {413, "invalid_request_error", "request_too_large", "request_too_large"},
    {415, "invalid_request_error", "unsupported_media_type", "invalid_request_error"},
    {422, "invalid_request_error", "unprocessable_entity", "invalid_request_error"},
    {429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"},
    {499, "cancelled", "client_closed_request", "api_error"},
    {500, "server_error", "internal_error", "api_error"},
    {501, "invalid_request_error", "not_supported", "invalid_request_error"},
    {503, "server_error", "overloaded", "overloaded_error"},
    {504, "timeout_error", "deadline_exceeded", "timeout_error"},
};

const status_words& words(int status) {
  for (const auto& w : words_of)
    if (w.status == status)
      return w;
  return words(status < 500 ? 400 : 500);
}

std::string presentable(std::string_view message) {
  if (message.size() <= message_bytes_max)
    return utf8_lossy(message);
  std::string cut{message.substr(0, message_bytes_max)};
  cut.resize(utf8_valid_prefix(cut) + 3 > cut.size() ? utf8_valid_prefix(cut) : cut.size());
  return utf8_lossy(cut) + "...";
}

} // namespace

api_error make_error(int status, std::string message) {
  const auto& w = words(status);
  const bool passes = status == 429 || status == 503;
  return {status,
          std::string{w.type},
          std::string{w.code},
          std::move(message),
          std::nullopt,
          passes ? ask_again_default_ms : 0};
}

api_error make_error(int status, std::string code, std::string message) {
  auto e = make_error(status, std::move(message));
  e.code = std::move(code);
  return e;
}

api_error bad_field(std::string param, std::string message) {
  auto e = make_error(400, std::move(message));
  e.param = std::move(param);
  return e;
}

api_error from_cluster(ec code, std::string_view what, std::uint64_t ask_again_ms) {
  const auto later = [&](int status, std::string_view name) {
    auto e = make_error(status, std::string{name}, std::string{what});
    if (ask_again_ms > 0)
      e.retry_after_ms = ask_again_ms;
    return e;
  };
  switch (code) {
  case ec::bad_argument:
  case ec::bad_format:
  case ec::bad_shape:
    return make_error(400, std::string{what});
  case ec::context_exceeded:
    return make_error(400, "context_length_exceeded", std::string{what});
  case ec::not_found:
    return make_error(404, std::string{what});
  case ec::duplicate:
    return make_error(409, std::string{what});
  case ec::limit_exceeded:
    return later(429, "rate_limit_exceeded");
  case ec::kv_exhausted:
  case ec::unavailable:
  case ec::peer_lost:
  case ec::refused:
  case ec::stale_incarnation:
  case ec::stale_epoch:
  case ec::gave_up:
  case ec::device_lost:
    return later(503, "overloaded");
  case ec::deadline_exceeded:
    return make_error(504, std::string{what});
  case ec::cancelled:
    return make_error(499, std::string{what});
  default:
    return make_error(500, std::string{what});
  }
}

std::string error_body(dialect shape, const api_error& e, std::string_view request_id) {
  using engine::json;
  json body;
  if (shape == dialect::anthropic) {
    body["type"] = "error";
    body["error"] = {{"type", words(e.status).anthropic}, {"message", presentable(e.message)}};
    body["request_id"] = utf8_lossy(request_id);
  } else {
    auto& inner = body["error"];
    inner["message"] = presentable(e.message);
    inner["type"] = e.type;
    inner["param"] = e.param ? json(presentable(*e.param)) : json(nullptr);
    inner["code"] = e.code.empty() ? json(nullptr) : json(e.code);
  }
  return body.dump();
}

std::string retry_after(std::uint64_t ms) {
  return std::to_string(ms < 1'000 ? 1 : (ms + 999) / 1'000);
}

} // namespace di::serve
