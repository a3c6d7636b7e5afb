// SPDX-License-Identifier: Apache-2.0
#include "chaos/run_log.hpp"

#include <array>
#include <charconv>
#include <chrono>

namespace di::chaos {
namespace {

std::string_view next_word(std::string_view& text) {
  while (text.starts_with(' '))
    text.remove_prefix(1);
  const std::size_t end = std::min(text.find(' '), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

/// The value of a pair; `text` begins behind the equals sign.
std::string take_value(std::string_view& text) {
  if (!text.starts_with('"'))
    return std::string{next_word(text)};
  text.remove_prefix(1);
  std::string out;
  while (!text.empty() && text.front() != '"') {
    if (text.front() == '\\' && text.size() > 1) {
      text.remove_prefix(1);
      out += text.front() == 'n' ? '\n' : text.front();
    } else {
      out += text.front();
    }
    text.remove_prefix(1);
  }
  if (!text.empty())
    text.remove_prefix(1);
  return out;
}

/// `2026-11-30T05:13:26.979821Z` [us] since 1970; 0 if it is none.
std::int64_t read_wall_us(std::string_view time) {
  std::array<std::int64_t, 7> n{}; // year, month, day, hour, minute, second, microseconds
  std::size_t at = 0;
  for (std::int64_t& number : n) {
    const auto [end, wrong] = std::from_chars(time.data() + at, time.data() + time.size(), number);
    if (wrong != std::errc{} || number < 0)
      return 0;
    at = static_cast<std::size_t>(end - time.data()) + 1;
    if (at >= time.size())
      break;
  }
  namespace chrono = std::chrono;
  const chrono::sys_days day{chrono::year{static_cast<int>(n[0])} / static_cast<int>(n[1])
                             / static_cast<int>(n[2])};
  return chrono::duration_cast<chrono::microseconds>(day.time_since_epoch() + chrono::hours{n[3]}
                                                     + chrono::minutes{n[4]} + chrono::seconds{n[5]}
                                                     + chrono::microseconds{n[6]})
      .count();
}

std::optional<std::uint64_t> number_before(std::string_view text, std::string_view mark) {
  const std::size_t end = text.find(mark);
  if (end == std::string_view::npos)
    return std::nullopt;
  std::size_t begin = end;
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9')
    --begin;
  std::uint64_t n = 0;
  const auto [stop, wrong] = std::from_chars(text.data() + begin, text.data() + end, n);
  return wrong == std::errc{} && stop == text.data() + end ? std::optional{n} : std::nullopt;
}

} // namespace

std::string_view log_event::field(std::string_view key) const {
  const auto at = fields.find(key);
  return at == fields.end() ? std::string_view{} : std::string_view{at->second};
}

std::optional<std::int64_t> log_event::number(std::string_view key) const {
  const std::string_view text = field(key);
  std::int64_t n = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (text.empty() || wrong != std::errc{} || end != text.data() + text.size())
    return std::nullopt;
  return n;
}

std::optional<log_event> parse_log_line(std::string_view line) {
  if (line.starts_with('[')) {
    const std::size_t end = line.find("] ");
    if (end == std::string_view::npos)
      return std::nullopt;
    line.remove_prefix(end + 2);
  }
  const std::string_view time = next_word(line);
  if (time.size() < 20 || time[10] != 'T' || !time.ends_with('Z'))
    return std::nullopt;
  log_event e;
  e.wall_us = read_wall_us(time);
  e.level = next_word(line);
  e.process = next_word(line);
  e.name = next_word(line);
  if (e.name.empty())
    return std::nullopt;
  while (true) {
    while (line.starts_with(' '))
      line.remove_prefix(1);
    const std::size_t eq = line.find('=');
    if (eq == std::string_view::npos)
      break;
    std::string key{line.substr(0, eq)};
    line.remove_prefix(eq + 1);
    e.fields.insert_or_assign(std::move(key), take_value(line));
  }
  e.mono_us = e.number("mono_us").value_or(0);
  return e;
}

std::optional<std::uint64_t> progress_tokens(const log_event& e) {
  return number_before(e.field("text"), " tokens,");
}

std::optional<std::uint64_t> progress_finished(const log_event& e) {
  return number_before(e.field("text"), "/");
}

double counted(const std::vector<log_event>& events, std::string_view name) {
  double sum = 0;
  for (const log_event& e : events) {
    if (e.name != "process_counters")
      continue;
    std::string_view rest = e.field("counters");
    for (std::string_view pair = next_word(rest); !pair.empty(); pair = next_word(rest)) {
      const std::size_t equals = std::min(pair.find('='), pair.size() - 1);
      double total = 0;
      if (pair.substr(0, equals) == name
          && std::from_chars(pair.data() + equals + 1, pair.data() + pair.size(), total).ec
                 == std::errc{})
        sum += total;
    }
  }
  return sum;
}

} // namespace di::chaos
