// SPDX-License-Identifier: Apache-2.0
// Names of enumerators, and whether a number is one: enums travel as numbers and are printed as
// words, without a list kept by hand.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

namespace di::wire {

/// Enumerators of messages lie in [0, enum_values); decoding refuses every other number.
inline constexpr std::size_t enum_values = 64;

namespace detail {

template <class E, E Value>
constexpr std::string_view enumerator_name() {
  // g++: "... [with E = di::ec; E Value = di::ec::not_found; ...]", a number in brackets if none.
  std::string_view text = __PRETTY_FUNCTION__;
  constexpr std::string_view label = "Value = ";
  text.remove_prefix(text.find(label) + label.size());
  text = text.substr(0, text.find_first_of(";]"));
  if (text.empty() || text.front() == '(' || (text.front() >= '0' && text.front() <= '9'))
    return {};
  if (const std::size_t colon = text.rfind(':'); colon != std::string_view::npos)
    text.remove_prefix(colon + 1);
  return text;
}

template <class E, std::size_t... I>
constexpr std::array<std::string_view, sizeof...(I)> enumerator_names(std::index_sequence<I...>) {
  return {enumerator_name<E, static_cast<E>(I)>()...};
}

template <class E>
inline constexpr auto names_of = enumerator_names<E>(std::make_index_sequence<enum_values>{});

} // namespace detail

/// Name of a value, "" if it is no enumerator.
template <class E>
requires std::is_enum_v<E>
constexpr std::string_view enum_name(E value) {
  const auto n = static_cast<std::uint64_t>(static_cast<std::underlying_type_t<E>>(value));
  return n < enum_values ? detail::names_of<E>[n] : std::string_view{};
}

} // namespace di::wire
