// SPDX-License-Identifier: Apache-2.0
#include "messaging/base/error.hpp"

#include "messaging/base/check.hpp"
#include "messaging/base/check_hook.hpp"

#include <cstdio>
#include <cstdlib>

namespace di {

std::string_view to_string(ec code) noexcept {
  switch (code) {
  case ec::ok:
    return "ok";
  case ec::bad_argument:
    return "bad_argument";
  case ec::bad_config:
    return "bad_config";
  case ec::bad_format:
    return "bad_format";
  case ec::bad_shape:
    return "bad_shape";
  case ec::not_found:
    return "not_found";
  case ec::duplicate:
    return "duplicate";
  case ec::io_error:
    return "io_error";
  case ec::limit_exceeded:
    return "limit_exceeded";
  case ec::context_exceeded:
    return "context_exceeded";
  case ec::kv_exhausted:
    return "kv_exhausted";
  case ec::unavailable:
    return "unavailable";
  case ec::peer_lost:
    return "peer_lost";
  case ec::deadline_exceeded:
    return "deadline_exceeded";
  case ec::stale_incarnation:
    return "stale_incarnation";
  case ec::stale_epoch:
    return "stale_epoch";
  case ec::moved:
    return "moved";
  case ec::unknown_message:
    return "unknown_message";
  case ec::corrupt:
    return "corrupt";
  case ec::refused:
    return "refused";
  case ec::cancelled:
    return "cancelled";
  case ec::device_lost:
    return "device_lost";
  case ec::gave_up:
    return "gave_up";
  case ec::internal:
    return "internal";
  }
  return "unknown";
}

std::string error::render() const {
  return std::string{to_string(code)} + ": " + what;
}

namespace detail {

void (*on_check_failed)(const std::string& words) = nullptr;

void check_failed(const char* file, int line, const char* text, const std::string& values) {
  const std::string words = std::string{file} + ":" + std::to_string(line)
                            + ": check failed: " + text + (values.empty() ? "" : " with " + values);
  if (on_check_failed)
    on_check_failed(words);
  std::fprintf(stderr, "%s\n", words.c_str());
  std::fflush(stderr);
  std::abort();
}

} // namespace detail
} // namespace di
