// SPDX-License-Identifier: Apache-2.0
// JSON text of tool calls.
#include "engine/chat/tool_arguments.hpp"

#include "engine/chat/json.hpp"

namespace di::engine {
namespace {

// What is no JSON is text. Of a value without its attribute only objects and lists count as JSON:
// a bare word or number is more often meant as text.
std::string judged(std::string_view raw, value_form form) {
  const std::size_t begin = raw.find_first_not_of(" \t\r\n");
  const bool composed = begin != std::string_view::npos && (raw[begin] == '{' || raw[begin] == '[');
  if ((form == value_form::document || composed) && is_bounded_json(raw))
    return std::string{raw};
  return '"' + json_escaped(raw) + '"';
}

} // namespace

bool is_bounded_json(std::string_view text, std::uint32_t levels) {
  std::uint32_t depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\')
      ++i;
    else if (c == '"')
      quoted = !quoted;
    else if (!quoted && (c == '{' || c == '[') && ++depth > levels)
      return false;
    else if (!quoted && (c == '}' || c == ']') && depth > 0)
      --depth;
  }
  return json::accept(text);
}

void tool_arguments::begin_call() {
  *this = tool_arguments{strict_};
}

std::string tool_arguments::separator() {
  const bool first = !any_;
  any_ = true;
  return first ? "{" : ", ";
}

std::string tool_arguments::begin_key() {
  return separator();
}

std::string tool_arguments::key(std::string_view name) {
  skip_ = !keys_.emplace(name).second;
  if (skip_)
    return {};
  keyed_ = true;
  return separator() + '"' + json_escaped(name) + "\": ";
}

std::string tool_arguments::begin_value(value_form form) {
  open_ = true;
  form_ = form;
  held_.clear();
  if (skip_)
    return {};
  keyed_ = false;
  return form == value_form::text ? "\"" : "";
}

std::string tool_arguments::value(std::string_view text) {
  if (skip_)
    return {};
  if (form_ == value_form::text)
    return json_escaped(text);
  if (strict_)
    return std::string{text};
  held_ += text;
  return {};
}

std::string tool_arguments::end_value() {
  open_ = false;
  if (skip_) {
    skip_ = false;
    return {};
  }
  if (form_ == value_form::text)
    return "\"";
  return strict_ ? std::string{} : judged(held_, form_);
}

std::string tool_arguments::end_call() {
  if (strict_)
    return any_ ? "}" : "{}";
  std::string out;
  if (open_)
    out = end_value();
  else if (keyed_)
    out = "null";
  return out + (any_ ? "}" : "{}");
}

} // namespace di::engine
