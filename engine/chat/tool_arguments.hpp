// SPDX-License-Identifier: Apache-2.0
// The arguments of a tool call as JSON text, built while its parameters arrive.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace di::engine {

/// How the value of a parameter is written.
enum class value_form : std::uint8_t {
  text,     ///< string="true": as it is; becomes a JSON string
  document, ///< string="false": JSON
  unknown,  ///< the attribute is missing or says something else
};

/// Whether the text is JSON of at most `levels` levels: what may be parsed and written again
/// without fear for the stack.
bool is_bounded_json(std::string_view text, std::uint32_t levels = 200);

/// Builds `{"key": value, ...}` piece by piece.
///
/// Strict: as the reference does, keys and JSON values unchecked. Else the pieces joined are always
/// a JSON object once end_call() was called: keys are escaped, the first of equal keys counts,
/// values that are no JSON become strings, and what was cut off is closed. Each function returns
/// the text that it adds.
class tool_arguments {
public:
  explicit tool_arguments(bool strict) : strict_{strict} {}

  void begin_call();

  /// Strict: the key begins; key_text() takes it with its quotes.
  std::string begin_key();
  std::string key_text(std::string_view raw) { return std::string{raw}; }
  std::string end_key() { return ": "; }

  /// Not strict: the whole key, without its quotes.
  std::string key(std::string_view name);

  std::string begin_value(value_form form);
  std::string value(std::string_view text);
  std::string end_value();

  /// Ends the call; a value that is still open is closed first unless strict.
  std::string end_call();

private:
  std::string separator();

  bool strict_;
  bool any_ = false;   // a parameter has begun
  bool open_ = false;  // a value has begun
  bool skip_ = false;  // it belongs to a repeated key
  bool keyed_ = false; // a key stands without its value
  value_form form_ = value_form::text;
  std::string held_; // value that must be whole to be judged
  std::set<std::string, std::less<>> keys_;
};

} // namespace di::engine
