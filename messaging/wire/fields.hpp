// SPDX-License-Identifier: Apache-2.0
// What kinds of fields messages may have, and facts about messages that follow from them.
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/proto/message.hpp"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace di::wire {

template <class T>
inline constexpr bool is_strong_id = false;
template <class Tag, class Int>
inline constexpr bool is_strong_id<strong_id<Tag, Int>> = true;

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;

template <class T>
inline constexpr bool is_std_array = false;
template <class T, std::size_t N>
inline constexpr bool is_std_array<std::array<T, N>> = true;

template <class T>
inline constexpr bool is_string_map = false;
template <class T>
inline constexpr bool is_string_map<std::map<std::string, T>> = true;

/// Has a DI_FIELDS line.
template <class T>
concept has_fields = requires {
  { T::message_name() } -> std::convertible_to<std::string_view>;
};

/// Travels in the msgpack body, not as an attachment.
template <class T>
inline constexpr bool in_body = !std::is_same_v<T, shared_bytes>;

namespace detail {
template <class T>
using field_types = decltype(visit_fields(std::declval<T&>(), [](auto&... f) {
  return std::type_identity<std::tuple<std::remove_cvref_t<decltype(f)>...>>{};
}));

template <class T>
constexpr bool carries_bytes();

template <class... Fs>
constexpr bool any_carries_bytes(std::type_identity<std::tuple<Fs...>>) {
  return (false || ... || carries_bytes<Fs>());
}

template <class T>
constexpr bool carries_bytes() {
  if constexpr (std::is_same_v<T, shared_bytes>)
    return true;
  else if constexpr (is_optional<T> || is_vector<T> || is_std_array<T>)
    return carries_bytes<typename T::value_type>();
  else if constexpr (is_string_map<T>)
    return carries_bytes<typename T::mapped_type>();
  else if constexpr (has_fields<T>)
    return any_carries_bytes(field_types<T>{});
  else
    return false;
}
} // namespace detail

/// True if a message has a shared_bytes somewhere: it then always travels on the bulk socket.
template <class M>
constexpr bool has_attachments() {
  return detail::carries_bytes<M>();
}

} // namespace di::wire
