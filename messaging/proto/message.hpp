// SPDX-License-Identifier: Apache-2.0
// What a message is: an aggregate with a wire id, one doc line, units on its fields and one
// DI_FIELDS line. From that line come the msgpack codec, printing, golden bytes, fuzz tests and the
// generated doc/protocol.md. The form:
//
//   struct step_finished {
//     static constexpr wire_id wire{0x0202};
//     static constexpr std::string_view doc = "Fact: one decode step has finished on a rank.";
//     epoch step;                    ///< copies run_step::step
//     std::vector<token_id> tokens;  ///< [batch] next token per sequence, in plan order
//     DI_FIELDS(step_finished, m.step, m.tokens)
//   };
//
// `doc` is one sentence for doc/protocol.md; every built-in message has one, user types may leave
// it out. Field types the codec knows: bool, integers, float, double, enum, strong_id, std::string,
// shared_bytes, std::optional, std::vector, std::map<std::string, T> of such types, and structs
// with a DI_FIELDS line of their own.
#pragma once

#include "messaging/base/ids.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace di {

/// Number of a message type on the wire. High byte = protocol, low byte = message; 0x80 and up
/// belong to users.
struct wire_id {
  std::uint16_t v = 0;
  friend constexpr auto operator<=>(const wire_id&, const wire_id&) = default;
};

/// Immutable bytes with shared ownership: rows of an expert call, KV pages. As a field of a message
/// they travel as their own frame without a copy, and inside a process as a pointer. `owner` keeps
/// whatever the bytes live in alive.
class shared_bytes {
public:
  shared_bytes() = default;
  shared_bytes(std::shared_ptr<const void> owner, const void* data, std::size_t size)
      : owner_{std::move(owner)}, data_{static_cast<const std::byte*>(data)}, size_{size} {}

  /// Takes a container's elements without copying them; the container lives on inside.
  template <class Container>
  static shared_bytes adopt(Container&& elements) {
    auto held = std::make_shared<std::remove_cvref_t<Container>>(std::forward<Container>(elements));
    const void* data = held->data();
    const std::size_t size = held->size() * sizeof(*held->data());
    return {std::move(held), data, size};
  }

  const std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  /// @pre size() is a multiple of sizeof(T) and data() is aligned for T
  template <class T>
  std::span<const T> as() const noexcept {
    return {reinterpret_cast<const T*>(data_), size_ / sizeof(T)};
  }
  const std::shared_ptr<const void>& owner() const noexcept { return owner_; }
  friend bool operator==(const shared_bytes& a, const shared_bytes& b) noexcept {
    return a.size_ == b.size_ && (a.size_ == 0 || std::memcmp(a.data_, b.data_, a.size_) == 0);
  }

private:
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A type that can be sent: has `wire` and a DI_FIELDS line.
template <class T>
concept message = requires {
  { T::wire } -> std::convertible_to<wire_id>;
  { T::message_name() } -> std::convertible_to<std::string_view>;
};

/// A list of types to fold over; the last line of each proto header is one.
template <class... Ts>
struct type_list {
  static constexpr std::size_t size = sizeof...(Ts);
};

/// One sentence on what a message says, or "" where its author gave none.
template <message M>
constexpr std::string_view message_doc() {
  if constexpr (requires {
                  { M::doc } -> std::convertible_to<std::string_view>;
                })
    return M::doc;
  else
    return {};
}

/// Calls f(field...) with the fields of a message in their order; also for nested structs with a
/// DI_FIELDS line.
template <class Message, class F>
constexpr decltype(auto) visit_fields(Message& m, F&& f) {
  return std::remove_const_t<Message>::di_fields(m, std::forward<F>(f));
}

} // namespace di

/// Lists the fields of a message, or of a struct inside one, once: `DI_FIELDS(step_finished,
/// m.step, m.tokens)`. At most 24 fields. Fields without a value yet keep their defaults when an
/// older sender leaves them out.
#define DI_FIELDS(type, ...)                                                                       \
  static constexpr std::string_view message_name() {                                               \
    return #type;                                                                                  \
  }                                                                                                \
  /* clang-format off */ \
  static constexpr std::string_view message_fields() { return #__VA_ARGS__; }                      \
  template <class Self, class F>                                                                   \
  static constexpr decltype(auto) di_fields([[maybe_unused]] Self& m, F&& f) {                     \
    return std::forward<F>(f)(__VA_ARGS__);                                                        \
  } /* clang-format on */
