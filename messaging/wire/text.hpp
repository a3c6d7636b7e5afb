// SPDX-License-Identifier: Apache-2.0
// Messages as text for logs and tests: "step_finished{step=3, tokens=[1, 2]}". Long values are cut.
#pragma once

#include "messaging/base/limits.hpp"
#include "messaging/wire/enum_names.hpp"
#include "messaging/wire/fields.hpp"

#include <string>
#include <string_view>

namespace di::wire {

/// Field names of a DI_FIELDS line, one after the other: "m.step, m.tokens" -> step, tokens.
class field_names {
public:
  explicit field_names(std::string_view written) : left_{written} {}
  std::string_view next();

private:
  std::string_view left_;
};

namespace detail {
void append_unsigned(std::string& out, std::uint64_t v);
void append_signed(std::string& out, std::int64_t v);
void append_double(std::string& out, double v, int digits);
void append_quoted(std::string& out, std::string_view v);
void append_size(std::string& out, std::size_t bytes);
void append_cut(std::string& out, std::size_t elements);

template <class T>
void append(std::string& out, const T& v);

template <class T>
void append_list(std::string& out, const T& v) {
  out += '[';
  std::size_t shown = 0;
  for (const auto& element : v) {
    if (shown != 0)
      out += ", ";
    if (shown++ == limits::printed_elements_max) {
      append_cut(out, v.size());
      break;
    }
    append(out, static_cast<const typename T::value_type&>(element));
  }
  out += ']';
}

template <class T>
void append_map(std::string& out, const T& v) {
  out += '{';
  std::size_t shown = 0;
  for (const auto& [key, value] : v) {
    if (shown != 0)
      out += ", ";
    if (shown++ == limits::printed_elements_max) {
      append_cut(out, v.size());
      break;
    }
    append_quoted(out, key);
    out += ": ";
    append(out, value);
  }
  out += '}';
}

template <class S>
void append_struct(std::string& out, const S& s) {
  out += S::message_name();
  out += '{';
  field_names names{S::message_fields()};
  bool first = true;
  [[maybe_unused]] const auto one = [&](const auto& field) {
    if (!first)
      out += ", ";
    first = false;
    out += names.next();
    out += '=';
    append(out, field);
  };
  visit_fields(s, [&](const auto&... f) { (one(f), ...); });
  out += '}';
}

template <class T>
void append(std::string& out, const T& v) {
  if constexpr (std::is_same_v<T, shared_bytes>) {
    append_size(out, v.size());
  } else if constexpr (std::is_same_v<T, bool>) {
    out += v ? "true" : "false";
  } else if constexpr (std::is_enum_v<T>) {
    if (const std::string_view name = enum_name(v); !name.empty())
      out += name;
    else
      append_unsigned(out, static_cast<std::uint64_t>(v));
  } else if constexpr (std::is_same_v<T, float>) {
    append_double(out, static_cast<double>(v), 9);
  } else if constexpr (std::is_same_v<T, double>) {
    append_double(out, v, 17);
  } else if constexpr (std::is_signed_v<T>) {
    append_signed(out, v);
  } else if constexpr (std::is_unsigned_v<T>) {
    append_unsigned(out, v);
  } else if constexpr (std::is_same_v<T, std::string>) {
    append_quoted(out, v);
  } else if constexpr (is_strong_id<T> || std::is_same_v<T, wire_id>) {
    append(out, v.v);
  } else if constexpr (std::is_same_v<T, duration>) {
    append_signed(out, v.count());
    out += "ns";
  } else if constexpr (is_optional<T>) {
    if (v)
      append(out, *v);
    else
      out += "none";
  } else if constexpr (is_string_map<T>) {
    append_map(out, v);
  } else if constexpr (is_vector<T> || is_std_array<T>) {
    append_list(out, v);
  } else {
    append_struct(out, v);
  }
}
} // namespace detail

/// A message or a struct with a DI_FIELDS line as text.
template <class M>
std::string to_text(const M& m) {
  std::string out;
  detail::append(out, m);
  return out;
}

} // namespace di::wire
