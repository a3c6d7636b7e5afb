// SPDX-License-Identifier: Apache-2.0
// What a client is told when its request cannot be served, in the words of its protocol.
#pragma once

#include "messaging/base/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace di::serve {

/// Whose error shape a route speaks.
enum class dialect : std::uint8_t { openai, anthropic };

/// One refusal. `type` is a word of OpenAI's table; Anthropic's follows from the status.
struct api_error {
  int status = 500;
  std::string type = "server_error";
  std::string code; ///< empty: null
  std::string message;
  std::optional<std::string> param;
  std::uint64_t retry_after_ms = 0; ///< [ms]; not 0: a Retry-After header, in whole seconds
};

/// Type and code as a status has them. 429 and 503 name a time to come back.
api_error make_error(int status, std::string message);
api_error make_error(int status, std::string code, std::string message);
/// 400 for one field.
api_error bad_field(std::string param, std::string message);

/// What a refusal, a failure or a bounce inside the cluster means for a client: 400 for what it can
/// mend, 429 and 503 for what passes, 504 for its deadline, 499 for its own withdrawal, else 500.
///
/// @param ask_again_ms  [ms] the cluster's own hint; 0: none was given
api_error from_cluster(ec code, std::string_view what, std::uint64_t ask_again_ms);

/// The body: OpenAI `{"error":{"message","type","param","code"}}`, Anthropic
/// `{"type":"error","error":{"type","message"},"request_id"}`. Always well-formed UTF-8, at most a
/// few KB however long the message.
std::string error_body(dialect shape, const api_error& e, std::string_view request_id);

/// Value of Retry-After [s], at least 1.
std::string retry_after(std::uint64_t ms);

} // namespace di::serve
