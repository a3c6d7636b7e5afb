// SPDX-License-Identifier: Apache-2.0
// Parsing and printing of values with units.
#include "launch/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

namespace di::launch {
namespace {

struct unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::array<unit, 7> time_units{{{"ns", 1},
                                          {"us", 1'000},
                                          {"ms", 1'000'000},
                                          {"s", 1'000'000'000},
                                          {"m", 60'000'000'000},
                                          {"h", 3'600'000'000'000},
                                          {"d", 86'400'000'000'000}}};

constexpr std::array<unit, 9> size_units{{{"B", 1},
                                          {"KiB", 1ULL << 10U},
                                          {"MiB", 1ULL << 20U},
                                          {"GiB", 1ULL << 30U},
                                          {"TiB", 1ULL << 40U},
                                          {"KB", 1'000},
                                          {"MB", 1'000'000},
                                          {"GB", 1'000'000'000},
                                          {"TB", 1'000'000'000'000}}};

template <std::size_t N>
std::string names(const std::array<unit, N>& units) {
  std::string s;
  for (const auto& u : units)
    s += fmt::format("{}{}", s.empty() ? "" : ", ", u.name);
  return s;
}

/// Number and unit -> number of the smallest unit. The number is decimal digits with at most one
/// point.
template <std::size_t N>
result<std::uint64_t> parse_with_unit(std::string_view text, const std::array<unit, N>& units,
                                      std::string_view what, std::string_view example) {
  const auto digits = text.find_first_not_of("0123456789.");
  const auto number = text.substr(0, digits);
  if (number.empty() || std::count(number.begin(), number.end(), '.') > 1 || number.front() == '.'
      || number.back() == '.' || number.size() > 24)
    return fail(ec::bad_argument, "\"{}\" is no {}: expected a number and a unit, e.g. {}", text,
                what, example);
  if (digits == std::string_view::npos)
    return fail(ec::bad_argument, "{} \"{}\" has no unit: write e.g. {}", what, text, example);
  const auto suffix = text.substr(digits);
  const auto u = std::find_if(units.begin(), units.end(),
                              [&](const unit& each) { return each.name == suffix; });
  if (u == units.end())
    return fail(ec::bad_argument, "{} \"{}\" has the unknown unit \"{}\": known are {}", what, text,
                suffix, names(units));
  if (number.find('.') == std::string_view::npos) {
    std::uint64_t n = 0;
    const auto [end, err] = std::from_chars(number.begin(), number.end(), n);
    if (err != std::errc{} || end != number.end()
        || n > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / u->factor)
      return fail(ec::bad_argument, "{} \"{}\" is too large", what, text);
    return n * u->factor;
  }
  double value = 0;
  std::from_chars(number.begin(), number.end(), value);
  const double scaled = std::round(value * static_cast<double>(u->factor));
  if (scaled > 9.0e18)
    return fail(ec::bad_argument, "{} \"{}\" is too large", what, text);
  return static_cast<std::uint64_t>(scaled);
}

/// One bracket item: "7" or "001-008"; keeps leading zeros.
result<void> expand_range(std::string_view item, std::string_view prefix, std::string_view suffix,
                          std::vector<std::string>& out) {
  const auto dash = item.find('-');
  const auto low = item.substr(0, dash);
  const auto high = dash == std::string_view::npos ? low : item.substr(dash + 1);
  DI_TRY(const auto first, parse_integer(low));
  DI_TRY(const auto last, parse_integer(high));
  if (first > last)
    return fail(ec::bad_argument, "host range {} runs backwards", item);
  if (static_cast<std::uint64_t>(last - first) >= hosts_max)
    return fail(ec::limit_exceeded, "host range {} names {} hosts; at most {}", item,
                last - first + 1, hosts_max);
  for (auto n = first; n <= last; ++n) {
    if (out.size() >= hosts_max)
      return fail(ec::limit_exceeded, "more than {} hosts", hosts_max);
    out.push_back(fmt::format("{}{:0{}}{}", prefix, n, low.size(), suffix));
  }
  return {};
}

result<void> expand_one(std::string_view word, std::vector<std::string>& out) {
  const auto open = word.find('[');
  const auto good = [](std::string_view part) {
    return std::all_of(part.begin(), part.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-'
             || c == '.' || c == '_' || c == ':';
    });
  };
  if (open == std::string_view::npos) {
    if (word.empty() || word.size() > 253 || word.front() == '-' || !good(word))
      return fail(ec::bad_argument, "\"{}\" is no host name", word);
    if (out.size() >= hosts_max)
      return fail(ec::limit_exceeded, "more than {} hosts", hosts_max);
    out.emplace_back(word);
    return {};
  }
  const auto close = word.find(']', open);
  if (close == std::string_view::npos)
    return fail(ec::bad_argument, "host list \"{}\" has no closing ]", word);
  const auto prefix = word.substr(0, open), suffix = word.substr(close + 1);
  if (prefix.empty() || prefix.front() == '-' || !good(prefix) || !good(suffix))
    return fail(ec::bad_argument, "\"{}\" is no host list: write host[001-008]", word);
  auto inside = word.substr(open + 1, close - open - 1);
  while (true) {
    const auto comma = inside.find(',');
    DI_TRY_VOID(expand_range(inside.substr(0, comma), prefix, suffix, out));
    if (comma == std::string_view::npos)
      return {};
    inside.remove_prefix(comma + 1);
  }
}

} // namespace

result<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t n = 0;
  const auto [end, err] = std::from_chars(text.begin(), text.end(), n);
  if (err == std::errc::result_out_of_range)
    return fail(ec::bad_argument, "{} is too large", text);
  if (err != std::errc{} || end != text.end() || text.front() == '-')
    return fail(ec::bad_argument, "\"{}\" is no whole number", text);
  return n;
}

result<std::chrono::nanoseconds> parse_time(std::string_view text) {
  DI_TRY(const auto ns, parse_with_unit(text, time_units, "time", "60ms"));
  return std::chrono::nanoseconds{static_cast<std::int64_t>(ns)};
}

result<std::uint64_t> parse_size(std::string_view text) {
  return parse_with_unit(text, size_units, "size", "512MiB");
}

std::string format_time(std::chrono::nanoseconds t) {
  const auto ns = static_cast<std::uint64_t>(t.count());
  if (ns == 0)
    return "0s";
  for (std::size_t i = time_units.size(); i-- > 0;)
    if (ns % time_units[i].factor == 0)
      return fmt::format("{}{}", ns / time_units[i].factor, time_units[i].name);
  return fmt::format("{}ns", ns);
}

std::string format_size(std::uint64_t size_bytes) {
  for (std::size_t i = 5; i-- > 0;)
    if (size_bytes != 0 && size_bytes % size_units[i].factor == 0)
      return fmt::format("{}{}", size_bytes / size_units[i].factor, size_units[i].name);
  return fmt::format("{}B", size_bytes);
}

std::string pretty_size(std::uint64_t size_bytes) {
  std::size_t i = 0;
  auto value = static_cast<double>(size_bytes);
  while (value >= 1024 && i < 4) {
    value /= 1024;
    ++i;
  }
  const int digits = i == 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, size_units[i].name);
}

result<std::vector<std::string>> expand_hosts(std::string_view text) {
  std::vector<std::string> out;
  std::size_t start = 0, depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[')
      ++depth;
    if (i < text.size() && text[i] == ']' && depth > 0)
      --depth;
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      DI_TRY_VOID(expand_one(text.substr(start, i - start), out));
      start = i + 1;
    }
  }
  return out;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const auto& c : candidates) {
    if (word.size() > 64 || c.size() > 64)
      continue;
    // Edit distance with swaps of neighbours, three rows.
    std::array<std::array<std::size_t, 66>, 3> rows{};
    std::iota(rows[0].begin(), rows[0].end(), 0U);
    for (std::size_t i = 1; i <= word.size(); ++i) {
      auto& now = rows[i % 3];
      const auto& before = rows[(i + 2) % 3];
      now[0] = i;
      for (std::size_t j = 1; j <= c.size(); ++j) {
        const std::size_t differ = word[i - 1] == c[j - 1] ? 0 : 1;
        now[j] = std::min({now[j - 1] + 1, before[j] + 1, before[j - 1] + differ});
        if (i > 1 && j > 1 && word[i - 1] == c[j - 2] && word[i - 2] == c[j - 1])
          now[j] = std::min(now[j], rows[(i + 1) % 3][j - 2] + 1);
      }
    }
    const auto distance = rows[word.size() % 3][c.size()];
    if (distance < best_distance && distance < c.size()) {
      best_distance = distance;
      best = c;
    }
  }
  return best;
}

} // namespace di::launch
