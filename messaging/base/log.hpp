// SPDX-License-Identifier: Apache-2.0
// Structured log: an event name and key=value pairs on one line of stderr.
//
//   log::info("plan_published", {{"epoch", e.v}, {"moved", n}});
//   2026-11-29T22:11:33.123456Z info /rank/3 plan_published epoch=4 moved=12
//
// Event names are snake_case facts, listed in doc/operations.md. No log in loops per token.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

namespace di::log {

enum class level { debug, info, warn, error, off };

/// One key=value pair; the value is text at once, so that nothing dangles.
struct field {
  std::string_view key;
  std::string value;

  field(std::string_view k, std::string_view v) : key{k}, value{v} {}
  field(std::string_view k, const std::string& v) : key{k}, value{v} {}
  field(std::string_view k, const char* v) : key{k}, value{v} {}
  field(std::string_view k, bool v) : key{k}, value{v ? "true" : "false"} {}
  template <class Number>
  requires std::integral<Number> || std::floating_point<Number> field(std::string_view k, Number v)
      : key{k}, value{std::to_string(v)} {}
};

using fields = std::initializer_list<field>;

/// Name in every line, e.g. "/rank/3". Set once at start.
void set_process(std::string_view name);
/// Lines below `least` are not written. Default: info.
void set_level(level least);
/// From "debug", "info", "warn", "error" or "off"; false if `name` is none of them.
bool set_level(std::string_view name);
bool enabled(level l) noexcept;

/// Every line says the monotonic time of the host too (`mono_us=`); on from the start if the
/// environment has DI_FAULTS.
void stamp_monotonic(bool on);

/// Writes one line. Thread-safe; lines never mix. Values with spaces, quotes or control characters
/// are quoted.
void write(level l, std::string_view event, fields pairs);

inline void debug(std::string_view event, fields pairs = {}) {
  if (enabled(level::debug))
    write(level::debug, event, pairs);
}
inline void info(std::string_view event, fields pairs = {}) {
  if (enabled(level::info))
    write(level::info, event, pairs);
}
inline void warn(std::string_view event, fields pairs = {}) {
  if (enabled(level::warn))
    write(level::warn, event, pairs);
}
inline void error(std::string_view event, fields pairs = {}) {
  if (enabled(level::error))
    write(level::error, event, pairs);
}

/// The line without time, as write() would make it; for tests and for other sinks.
std::string line(level l, std::string_view event, fields pairs);

} // namespace di::log
