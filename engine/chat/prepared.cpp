// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/prepared.hpp"

namespace di::engine {

const char* to_string(effort_level level) noexcept {
  switch (level) {
  case effort_level::low:
    return "low";
  case effort_level::high:
    return "high";
  case effort_level::xhigh:
    return "xhigh";
  case effort_level::max:
    return "max";
  }
  return "?";
}

const char* to_string(tool_choice_kind kind) noexcept {
  switch (kind) {
  case tool_choice_kind::automatic:
    return "auto";
  case tool_choice_kind::none:
    return "none";
  case tool_choice_kind::required:
  case tool_choice_kind::named:
    return "required";
  }
  return "?";
}

const char* to_string(response_format_kind kind) noexcept {
  switch (kind) {
  case response_format_kind::text:
    return "text";
  case response_format_kind::json_object:
    return "json_object";
  case response_format_kind::json_schema:
    return "json_schema";
  case response_format_kind::regex:
    return "regex";
  }
  return "?";
}

} // namespace di::engine
