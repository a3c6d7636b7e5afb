// SPDX-License-Identifier: Apache-2.0
// Short ways to prepare a request in a test.
#pragma once

#include "engine/chat/prepare.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace di::engine::testing {

inline request_rules strict() {
  request_rules rules;
  rules.strict_reference = true;
  return rules;
}

inline prepared_request accepted(api protocol, std::string_view body,
                                 const request_rules& rules = {}) {
  auto out = prepare_text(protocol, body, rules);
  if (const auto* const error = std::get_if<request_error>(&out)) {
    ADD_FAILURE() << body << ": " << error->message;
    return {};
  }
  return std::get<prepared_request>(std::move(out));
}

inline request_error refused(api protocol, std::string_view body, const request_rules& rules = {}) {
  auto out = prepare_text(protocol, body, rules);
  if (std::holds_alternative<prepared_request>(out)) {
    ADD_FAILURE() << body << ": was accepted";
    return {};
  }
  return std::get<request_error>(std::move(out));
}

/// A Chat body with one user message and more fields.
inline std::string chat_body(std::string_view fields) {
  return R"({"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "Hi json"}])"
         + std::string{fields.empty() ? "" : ", "} + std::string{fields} + "}";
}
inline std::string messages_body(std::string_view fields) {
  return chat_body(R"("max_tokens": 9)" + std::string{fields.empty() ? "" : ", "}
                   + std::string{fields});
}
inline std::string responses_body(std::string_view fields) {
  return R"({"model": "DeepSeek-V4.1-Flash", "input": "Hi json")"
         + std::string{fields.empty() ? "" : ", "} + std::string{fields} + "}";
}

} // namespace di::engine::testing
