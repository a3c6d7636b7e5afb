// SPDX-License-Identifier: Apache-2.0
// What KV_AGENT's core keeps per channel and per restore. Private to kv_agent_core.
#pragma once

#include "engine/core/kv_agent_core.hpp"

namespace di::engine {

/// A sealed piece of an own request; counts itself among the queued bytes while it lives.
struct kv_agent_core::piece {
  piece(proto::kv_item what, shared_bytes content, std::uint64_t& counted)
      : item{what}, bytes{std::move(content)}, total{counted} {
    total += item.bytes;
  }
  piece(const piece&) = delete;
  piece& operator=(const piece&) = delete;
  ~piece() { total -= item.bytes; }

  proto::kv_item item;
  shared_bytes bytes;
  std::uint64_t& total;
};

struct kv_agent_core::channel {
  channel_key key;
  incarnation life{}; ///< of the holder
  channel_state state = channel_state::idle;
  std::deque<std::shared_ptr<const piece>> queue;
  std::vector<std::shared_ptr<const piece>> open; ///< of the message that is out
  std::set<proto::kv_address> given;              ///< was queued once: not again
  std::uint64_t number = 0;
  std::uint32_t sends = 0;
  instant due{};         ///< of the message that is out
  bool in_ready = false; ///< stands in ready_
  bool full = false;     ///< the buddy has no more room: cut after this batch
};

/// A rank that may have pieces.
struct kv_agent_core::holder {
  proto::view_member member;
  std::uint64_t ticket = 0; ///< of the question that is out; 0: none
  std::vector<std::size_t> asked;
  instant sent{}, due{};
  bool located = false; ///< has answered once
  bool failed = false;
};

/// One piece that would be of use.
struct kv_agent_core::wish {
  proto::kv_item item; ///< crc and bytes as whoever had it says
  std::vector<std::size_t> who;
  std::uint32_t bytes = 0; ///< as holders say
  bool chosen = false, done = false, asked = false;
  shared_bytes content;
};

struct kv_agent_core::restore {
  proto::restore_pages what;
  restore_state state = restore_state::locating;
  std::vector<wish> wishes;
  std::map<proto::kv_address, std::size_t> by_address;
  std::vector<holder> holders;
  std::vector<std::optional<std::size_t>> windows; ///< [wants] wish that was chosen
  instant began{}, locate_until{}, ends{};
};

} // namespace di::engine
