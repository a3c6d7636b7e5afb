// SPDX-License-Identifier: Apache-2.0
#include "messaging/base/log.hpp"

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace di::log {
namespace {

std::atomic<level> least_level{level::info};
std::mutex name_guard;
std::string process_name = "-";
std::atomic<bool> stamped{std::getenv("DI_FAULTS") != nullptr};

spdlog::level::level_enum native(level l) {
  switch (l) {
  case level::debug:
    return spdlog::level::debug;
  case level::info:
    return spdlog::level::info;
  case level::warn:
    return spdlog::level::warn;
  case level::error:
    return spdlog::level::err;
  case level::off:
    break;
  }
  return spdlog::level::off;
}

std::string_view name_of(level l) {
  switch (l) {
  case level::debug:
    return "debug";
  case level::info:
    return "info";
  case level::warn:
    return "warn";
  case level::error:
    return "error";
  case level::off:
    break;
  }
  return "off";
}

spdlog::logger& sink() {
  // Never destroyed: threads may log while statics end.
  static auto* logger = [] {
    auto* made = new spdlog::logger("di", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        "%Y-%m-%dT%H:%M:%S.%fZ %v", spdlog::pattern_time_type::utc));
    made->set_level(spdlog::level::trace);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

bool plain(std::string_view text) {
  if (text.empty())
    return false;
  for (const char c : text)
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7f)
      return false;
  return true;
}

void append_value(std::string& out, std::string_view text) {
  if (plain(text)) {
    out += text;
    return;
  }
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

} // namespace

void set_process(std::string_view name) {
  const std::lock_guard lock{name_guard};
  process_name = name;
}

void set_level(level least) {
  least_level.store(least, std::memory_order_relaxed);
}

bool set_level(std::string_view name) {
  for (const level l : {level::debug, level::info, level::warn, level::error, level::off})
    if (name_of(l) == name) {
      set_level(l);
      return true;
    }
  return false;
}

bool enabled(level l) noexcept {
  return l >= least_level.load(std::memory_order_relaxed) && l != level::off;
}

std::string line(level l, std::string_view event, fields pairs) {
  std::string out{name_of(l)};
  out += ' ';
  {
    const std::lock_guard lock{name_guard};
    out += process_name;
  }
  out += ' ';
  out += event;
  for (const field& f : pairs) {
    out += ' ';
    out += f.key;
    out += '=';
    append_value(out, f.value);
  }
  return out;
}

void stamp_monotonic(bool on) {
  stamped.store(on, std::memory_order_relaxed);
}

void write(level l, std::string_view event, fields pairs) {
  std::string text = line(l, event, pairs);
  if (stamped.load(std::memory_order_relaxed)) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    text += fmt::format(" mono_us={}",
                        std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  }
  sink().log(native(l), text);
}

} // namespace di::log
