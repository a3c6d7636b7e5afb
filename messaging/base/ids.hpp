// SPDX-License-Identifier: Apache-2.0
// Identifiers that do not convert into each other, and the address of an actor.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace di {

/// An integer with a meaning of its own. `Tag` only tells types apart.
template <class Tag, class Int>
struct strong_id {
  using value_type = Int;
  Int v = 0;

  constexpr strong_id() = default;
  constexpr explicit strong_id(Int value) : v{value} {}
  friend constexpr auto operator<=>(const strong_id&, const strong_id&) = default;
};

using node_id = strong_id<struct node_tag, std::uint32_t>; ///< host of a node process, from 0
using rank_id = strong_id<struct rank_tag, std::uint32_t>; ///< rank number, global, from 0
using layer_id =
    strong_id<struct layer_tag, std::uint32_t>; ///< backbone layer; draft layers follow
using expert_id =
    strong_id<struct expert_tag, std::uint32_t>; ///< routed expert of a layer, [0, experts)
using request_id = strong_id<struct request_tag, std::uint64_t>; ///< one request; given by GATEWAY
using call_id =
    strong_id<struct call_tag, std::uint64_t>; ///< one expert call of one rank incarnation
using page_id = strong_id<struct page_tag, std::uint32_t>; ///< KV page of one rank's pool
using epoch = strong_id<struct epoch_tag, std::uint64_t>;  ///< membership view or placement version
using incarnation =
    strong_id<struct incarnation_tag, std::uint64_t>; ///< one life of a process, random per start
using token_id = std::int32_t; ///< plain: token ids are compute data and index tables

/// Path of an actor, e.g. "/rank/3/expert_shard" or "/control/scheduler".
using address = std::string;

} // namespace di

template <class Tag, class Int>
struct std::hash<di::strong_id<Tag, Int>> {
  std::size_t operator()(const di::strong_id<Tag, Int>& id) const noexcept {
    return std::hash<Int>{}(id.v);
  }
};
