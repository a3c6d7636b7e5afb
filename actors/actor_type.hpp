// SPDX-License-Identifier: Apache-2.0
// An actor type as a value: kind, factory and messages. Made from a struct with `kind`, `core` and
// `protocol`.
#pragma once

#include "actors/protocol.hpp"
#include "messaging/wire/codec.hpp"

#include <string_view>
#include <vector>

/// Grows with every change of core_handle, actor_type, parcel, outbox or anything else that a
/// plugin and a program share.
#ifndef DI_KIT_ABI_VERSION
#define DI_KIT_ABI_VERSION 1
#endif

namespace di {

inline constexpr std::uint32_t kit_abi_version = DI_KIT_ABI_VERSION;

/// What the registry keeps of an actor type.
struct actor_type {
  std::string_view kind;
  std::vector<wire::codec> messages; ///< of the protocol, questions and answers
  /// Builds the core from its configuration. @errors bad_config, internal (it threw)
  result<std::unique_ptr<core_handle>> (*make)(const actor_context&) = nullptr;
};

/// A struct that names an actor type. A core is constructed from actor_context, from actor_config
/// or from nothing, whichever it takes first.
template <class T>
concept actor_kind = requires {
  { T::kind } -> std::convertible_to<std::string_view>;
  typename T::core;
  typename T::protocol;
};

namespace detail {

template <class Line>
void codecs_of_line(std::vector<wire::codec>& into) {
  into.push_back(wire::codec_of<typename Line::in>());
  if constexpr (requires { typename Line::answer; })
    into.push_back(wire::codec_of<typename Line::answer>());
}

template <class... Lines>
std::vector<wire::codec> codecs_of(const protocol<Lines...>&) {
  std::vector<wire::codec> all;
  (codecs_of_line<Lines>(all), ...);
  return all;
}

template <actor_kind T>
result<std::unique_ptr<core_handle>> make_core(const actor_context& context) {
  using handle = typed_core<typename T::core, typename T::protocol>;
  static_assert(
      std::is_constructible_v<
          typename T::core,
          const actor_context&> || std::is_constructible_v<typename T::core, const actor_config&> || std::is_default_constructible_v<typename T::core>,
      "a core is constructed from const actor_config&, const actor_context& or nothing");
  std::unique_ptr<core_handle> made;
  DI_TRY_VOID(guarded([&]() -> result<void> {
    if constexpr (std::is_constructible_v<typename T::core, const actor_context&>)
      made = std::make_unique<handle>(std::in_place, context);
    else if constexpr (std::is_constructible_v<typename T::core, const actor_config&>)
      made = std::make_unique<handle>(std::in_place, context.config);
    else
      made = std::make_unique<handle>(std::in_place);
    return context.config.finish();
  }));
  return made;
}

} // namespace detail

template <actor_kind T>
actor_type actor_type_of() {
  return {T::kind, detail::codecs_of(typename T::protocol{}), &detail::make_core<T>};
}

/// A core that exists already, behind the common face; for shells that give it more than a config.
template <actor_kind T, class... Args>
std::unique_ptr<core_handle> wrap_core(Args&&... args) {
  return std::make_unique<typed_core<typename T::core, typename T::protocol>>(
      std::in_place, std::forward<Args>(args)...);
}

/// Notes a user's actor type for the registry; called by DI_REGISTER_ACTOR while static objects are
/// made. `type` is not called if `abi_version` is not ours.
void enroll_actor(std::uint32_t abi_version, actor_type (*type)());

} // namespace di
