// SPDX-License-Identifier: Apache-2.0
// Header lists, percent decoding, query parameters.
#include "messaging/http/request.hpp"

#include <algorithm>

namespace di::http {

namespace {

char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9')
    return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

} // namespace

std::string_view trimmed(std::string_view s) noexcept {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t'))
    s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t'))
    s.remove_suffix(1);
  return s;
}

bool token_char(char c) noexcept {
  constexpr std::string_view marks = "!#$%&'*+-.^_`|~";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
         || marks.find(c) != marks.npos;
}

bool same_name(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return lower(x) == lower(y);
         });
}

void header_list::set(std::string_view name, std::string value) {
  for (auto& [key, old] : fields_)
    if (same_name(key, name)) {
      std::string kept = key; // remove() compares it once more
      remove(name);
      add(std::move(kept), std::move(value));
      return;
    }
  add(std::string{name}, std::move(value));
}

void header_list::remove(std::string_view name) {
  std::erase_if(fields_, [&](const auto& field) { return same_name(field.first, name); });
}

std::optional<std::string_view> header_list::find(std::string_view name) const {
  for (const auto& [key, value] : fields_)
    if (same_name(key, name))
      return value;
  return std::nullopt;
}

std::string_view header_list::get(std::string_view name) const {
  return find(name).value_or(std::string_view{});
}

std::size_t header_list::count(std::string_view name) const {
  return static_cast<std::size_t>(
      std::count_if(fields_.begin(), fields_.end(),
                    [&](const auto& field) { return same_name(field.first, name); }));
}

bool header_list::has_token(std::string_view name, std::string_view token) const {
  for (const auto& [key, value] : fields_) {
    if (!same_name(key, name))
      continue;
    for (std::string_view rest = value; !rest.empty();) {
      const auto comma = rest.find(',');
      if (same_name(trimmed(rest.substr(0, comma)), token))
        return true;
      rest = comma == rest.npos ? std::string_view{} : rest.substr(comma + 1);
    }
  }
  return false;
}

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_blank) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size())
        return std::nullopt;
      const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0)
        return std::nullopt;
      out.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    } else {
      out.push_back(plus_is_blank && text[i] == '+' ? ' ' : text[i]);
    }
  }
  return out;
}

std::optional<std::string> request::parameter(std::string_view name) const {
  for (std::string_view rest = query; !rest.empty();) {
    const auto end = rest.find('&');
    const auto item = rest.substr(0, end);
    rest = end == rest.npos ? std::string_view{} : rest.substr(end + 1);
    const auto equals = item.find('=');
    if (percent_decode(item.substr(0, equals), true) != name)
      continue;
    return percent_decode(equals == item.npos ? std::string_view{} : item.substr(equals + 1), true);
  }
  return std::nullopt;
}

} // namespace di::http
