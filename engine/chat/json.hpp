// SPDX-License-Identifier: Apache-2.0
// JSON as the gateway reads and writes it: key order kept, bounded on the way in, and the text form
// that prompts show to the model.
#pragma once

#include "messaging/base/result.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace di::engine {

/// Keys keep the order in which they came. Lookup is linear: look fields up a few times, not in
/// loops over large objects.
using json = nlohmann::ordered_json;

/// What to do with a key that occurs twice in one object.
enum class repeated_keys : std::uint8_t {
  refuse,    ///< an error with its place
  keep_last, ///< first place, last value
};

/// Bounds of one JSON text; passed before anything is built.
struct chat_json_limits {
  std::size_t bytes_max = std::size_t{32} << 20; ///< [bytes] of text
  std::size_t depth_max = 128;                   ///< [levels] of arrays and objects
  std::size_t values_max = 2'000'000;            ///< [values] of any kind, keys not counted
  repeated_keys repeated = repeated_keys::refuse;
};

/// Parses one JSON text that a client sent; time and memory are linear in its bytes.
///
/// Integers beyond 64 bits become floats; `-0` is the float -0.0.
/// @errors   ec::bad_format (syntax, UTF-8, a lone surrogate, a number beyond the floats, too
/// deep),
///           ec::duplicate, ec::limit_exceeded. The text names the byte (from 0) and never repeats
///           more than a few characters of the input.
result<json> parse_chat_json(std::string_view text, const chat_json_limits& limits = {});

/// How exponents of floats are written: 1e-07 or 1e-7.
enum class exponent_form : std::uint8_t { python, shortest };

/// The form of JSON inside prompts: separators ", " and ": ", everything above U+001F raw, floats
/// as Python writes them.
///
/// @source   prompt encoding specification, section 6; V4 prompts have the shortest exponents
std::string prompt_json(const json& value, exponent_form exponents = exponent_form::python);

/// The text as it stands inside a JSON string, of prompts and of answers.
std::string json_escaped(std::string_view text);

/// The form of JSON in constraints: compact, floats shortest with at least one decimal.
std::string constraint_json(const json& value);

} // namespace di::engine
