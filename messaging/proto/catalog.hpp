// SPDX-License-Identifier: Apache-2.0
// Every built-in message once: registration, golden bytes, fuzzing and doc/protocol.md fold over
// this list. A new proto header adds its include and its list here.
#pragma once

#include "messaging/proto/bus.hpp"
#include "messaging/proto/directory.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/gateway.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/keeper.hpp"
#include "messaging/proto/kv_agent.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/message.hpp"
#include "messaging/proto/node.hpp"
#include "messaging/proto/rank.hpp"
#include "messaging/proto/scheduler.hpp"
#include "messaging/proto/supervisor.hpp"
#include "messaging/proto/telemetry.hpp"
#include "messaging/proto/topic.hpp"

#include <algorithm>
#include <array>

namespace di::proto {

namespace detail {
template <class... Lists>
struct joined;
template <class... As>
struct joined<type_list<As...>> {
  using type = type_list<As...>;
};
template <class... As, class... Bs, class... Rest>
struct joined<type_list<As...>, type_list<Bs...>, Rest...> {
  using type = typename joined<type_list<As..., Bs...>, Rest...>::type;
};

template <message... Ms>
constexpr bool unique_ids(type_list<Ms...>) {
  std::array<std::uint16_t, sizeof...(Ms)> ids{wire_id{Ms::wire}.v...};
  std::sort(ids.begin(), ids.end());
  return std::adjacent_find(ids.begin(), ids.end()) == ids.end();
}

template <message... Ms>
constexpr bool all_documented(type_list<Ms...>) {
  return (true && ... && !message_doc<Ms>().empty());
}

template <message... Ms>
constexpr bool all_built_in(type_list<Ms...>) {
  return (true && ... && (wire_id{Ms::wire}.v < 0x8000));
}
} // namespace detail

/// Messages of all built-in protocols.
using catalog =
    detail::joined<bus_messages, gateway_messages, scheduler_messages, rank_messages,
                   expert_shard_messages, journal_messages, topic_messages, directory_messages,
                   membership_messages, supervisor_messages, telemetry_messages, keeper_messages,
                   node_messages, kv_agent_messages>::type;

static_assert(detail::unique_ids(catalog{}), "two messages share a wire id");
static_assert(detail::all_documented(catalog{}), "a built-in message has no doc line");
static_assert(detail::all_built_in(catalog{}), "wire ids from 0x8000 belong to users");

} // namespace di::proto
