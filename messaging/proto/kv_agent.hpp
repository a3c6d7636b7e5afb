// SPDX-License-Identifier: Apache-2.0
// Messages of KV_AGENT (0x0E): sealed KV pages of running requests that other ranks keep, and how a
// resumed attempt gets them back. The same reserve, push, landed, release serve a hand-over from a
// prefill rank to a decode rank (kv_purpose).
#pragma once

#include "messaging/base/error.hpp"
#include "messaging/proto/message.hpp"

#include <compare>
#include <cstdint>
#include <vector>

namespace di::proto {

/// Name of a piece of KV by its content: hash chain over contract id, salt, lineage (H of a bounded
/// hit) and token ids; of windows, over mode and floors too. Equal names, equal bytes.
struct kv_address {
  std::uint64_t low = 0, high = 0;
  friend constexpr auto operator<=>(const kv_address&, const kv_address&) = default;
  DI_FIELDS(kv_address, m.low, m.high)
};

enum class kv_kind : std::uint8_t {
  page = 0,    ///< compressed entries of page_tokens tokens of all KV sources
  windows = 1, ///< window rings of all layers at a page boundary
};

/// What the pieces are for.
enum class kv_purpose : std::uint8_t {
  replica = 0,  ///< kept until the attempt ends, or its owner is gone and nobody claims them
  handover = 1, ///< a prefill rank gives a request away; the receiver claims them
};

/// One piece. Its bytes stand beside it in the same message, pieces one behind the other.
struct kv_item {
  kv_address at;
  kv_kind kind = kv_kind::page;
  std::uint32_t choice = 0;
  std::uint32_t end = 0;   ///< [tokens] of the sequence up to the end of this piece
  std::uint32_t bytes = 0; ///< [bytes]
  std::uint32_t crc = 0;   ///< CRC-32C over address, kind, end and bytes, made by who computed them
  friend bool operator==(const kv_item&, const kv_item&) = default;
  DI_FIELDS(kv_item, m.at, m.kind, m.choice, m.end, m.bytes, m.crc)
};

/// Under which pieces are held for somebody: an attempt of a request on a life of a rank.
struct kv_lease {
  request_id request;
  std::uint32_t attempt = 0;
  rank_id owner;
  incarnation life{}; ///< of the owner
  friend constexpr auto operator<=>(const kv_lease&, const kv_lease&) = default;
  DI_FIELDS(kv_lease, m.request, m.attempt, m.owner, m.life)
};

struct pages_sealed {
  static constexpr wire_id wire{0x0E01};
  static constexpr std::string_view doc =
      "Fact of RANK for its own agent: nothing writes to these pieces any more, keep copies "
      "elsewhere. Overload: bounded memory; beyond it they are dropped.";
  request_id request;
  std::uint32_t attempt = 0;
  std::vector<kv_item> items; ///< of a choice, in order of `end`
  shared_bytes bytes;
  DI_FIELDS(pages_sealed, m.request, m.attempt, m.items, m.bytes)
};

struct reserve_pages {
  static constexpr wire_id wire{0x0E02};
  static constexpr std::string_view doc =
      "Command of an agent to a buddy: keep room for these pieces. Answered by pages_reserved; "
      "sent "
      "again until then. A newer number of the same lease ends the reservation before. Overload: "
      "one open per lease and buddy.";
  kv_lease lease;
  kv_purpose purpose = kv_purpose::replica;
  epoch view{};             ///< that the owner works under
  std::uint64_t number = 0; ///< of the lease at this buddy, from 1
  std::vector<kv_item> items;
  DI_FIELDS(reserve_pages, m.lease, m.purpose, m.view, m.number, m.items)
};

/// What a buddy says to one piece.
enum class kv_verdict : std::uint8_t {
  refused = 0, ///< no room, or it came broken
  wanted = 1,  ///< room is kept, push it
  held = 2,    ///< it is here already, and held for this lease too
};

struct pages_reserved {
  static constexpr wire_id wire{0x0E03};
  static constexpr std::string_view doc = "Answer to reserve_pages. Overload: one each.";
  kv_lease lease;
  rank_id holder;
  incarnation life{}; ///< of the holder
  std::uint64_t number = 0;
  ec code = ec::ok;                 ///< stale_epoch, stale_incarnation: the lease is void
  std::vector<kv_verdict> verdicts; ///< one per item; empty if not ok
  DI_FIELDS(pages_reserved, m.lease, m.holder, m.life, m.number, m.code, m.verdicts)
};

struct push_pages {
  static constexpr wire_id wire{0x0E04};
  static constexpr std::string_view doc =
      "Command of an agent to a buddy: the pieces that it wanted. Answered by pages_landed; sent "
      "again until then. Overload: bandwidth and one open per lease and buddy.";
  kv_lease lease;
  epoch view{};
  std::uint64_t number = 0; ///< of the reservation
  std::vector<kv_item> items;
  shared_bytes bytes;
  DI_FIELDS(push_pages, m.lease, m.view, m.number, m.items, m.bytes)
};

struct pages_landed {
  static constexpr wire_id wire{0x0E05};
  static constexpr std::string_view doc = "Answer to push_pages. Overload: one each.";
  kv_lease lease;
  rank_id holder;
  incarnation life{};
  std::uint64_t number = 0;
  std::vector<kv_verdict> verdicts; ///< one per item: held, or refused (broken, not reserved)
  DI_FIELDS(pages_landed, m.lease, m.holder, m.life, m.number, m.verdicts)
};

struct release_pages {
  static constexpr wire_id wire{0x0E06};
  static constexpr std::string_view doc =
      "Command: this attempt of the request is over, forget what is held for it and for older "
      "ones; newer attempts keep theirs. From RANK to its own agent, and from there to the "
      "holders, who answer pages_released; sent again until then. Overload: one per attempt.";
  kv_lease lease;
  DI_FIELDS(release_pages, m.lease)
};

struct pages_released {
  static constexpr wire_id wire{0x0E07};
  static constexpr std::string_view doc = "Answer to release_pages. Overload: one each.";
  kv_lease lease;
  rank_id holder;
  incarnation life{};
  DI_FIELDS(pages_released, m.lease, m.holder, m.life)
};

/// What a choice of a resumed attempt could use.
struct kv_want {
  std::uint32_t choice = 0;
  std::uint32_t first_page = 0;     ///< pages before it are there already
  std::vector<kv_address> pages;    ///< from first_page on, one behind the other
  std::vector<kv_address> windows;  ///< that would do, longest first
  std::vector<std::uint32_t> ends;  ///< [tokens] of `windows`
  std::uint32_t rebuild_tokens = 0; ///< [tokens] to compute again behind pages without windows
  DI_FIELDS(kv_want, m.choice, m.first_page, m.pages, m.windows, m.ends, m.rebuild_tokens)
};

struct restore_pages {
  static constexpr wire_id wire{0x0E08};
  static constexpr std::string_view doc =
      "Command of RANK to its own agent: get what is held of this request, if that is cheaper than "
      "to compute it. Answered by pages_restored within the time. Overload: one per resumed "
      "attempt.";
  request_id request;
  std::uint32_t attempt = 0; ///< that is resumed here
  std::vector<kv_want> wants;
  std::uint32_t page_tokens = 0; ///< [tokens]
  double token_us = 0;           ///< [us] to compute one token
  std::uint32_t within_ms = 0;   ///< [ms] then with what has come
  DI_FIELDS(restore_pages, m.request, m.attempt, m.wants, m.page_tokens, m.token_us, m.within_ms)
};

struct pages_restored {
  static constexpr wire_id wire{0x0E09};
  static constexpr std::string_view doc =
      "Answer to restore_pages: what came, checked; may be nothing. Overload: one each.";
  request_id request;
  std::uint32_t attempt = 0;
  std::vector<kv_item> items; ///< pages without a gap from first_page on, then windows, by choice
  shared_bytes bytes;
  DI_FIELDS(pages_restored, m.request, m.attempt, m.items, m.bytes)
};

struct fetch_pages {
  static constexpr wire_id wire{0x0E0A};
  static constexpr std::string_view doc =
      "Question of an agent to any other: which of these pieces are there, and the first of them "
      "up to a size. Answered by pages_fetched. Overload: one open per restore and holder.";
  std::uint64_t ticket = 0; ///< unique per life of the asker
  request_id request;
  std::uint32_t attempt = 0;
  rank_id asker;
  incarnation life{}; ///< of the asker
  epoch view{};
  std::vector<kv_address> wanted;
  std::uint64_t bytes_max = 0; ///< [bytes] 0: only say what is there
  DI_FIELDS(fetch_pages, m.ticket, m.request, m.attempt, m.asker, m.life, m.view, m.wanted,
            m.bytes_max)
};

struct pages_fetched {
  static constexpr wire_id wire{0x0E0B};
  static constexpr std::string_view doc = "Answer to fetch_pages. Overload: one each.";
  std::uint64_t ticket = 0;
  rank_id holder;
  incarnation life{};
  std::vector<std::uint32_t> held; ///< [bytes] per wanted piece; 0: it is not there
  std::vector<kv_item> items;      ///< of them, in order, as many as fit
  shared_bytes bytes;
  DI_FIELDS(pages_fetched, m.ticket, m.holder, m.life, m.held, m.items, m.bytes)
};

struct get_kv_agent {
  static constexpr wire_id wire{0x0E0C};
  static constexpr std::string_view doc = "Question: what does the agent hold and move. Overload: "
                                          "none.";
  DI_FIELDS(get_kv_agent)
};

struct kv_agent_state {
  static constexpr wire_id wire{0x0E0D};
  static constexpr std::string_view doc = "Answer to get_kv_agent.";
  rank_id rank;
  incarnation life{};
  epoch view{};
  std::uint64_t held_items = 0, held_bytes = 0; ///< for others
  std::uint64_t reserved_bytes = 0;             ///< room that is promised
  std::uint64_t leases = 0;                     ///< of others, here
  std::uint64_t owned = 0;                      ///< own attempts that others hold pieces of
  std::uint64_t queued_bytes = 0;               ///< own pieces on their way
  std::uint64_t restores = 0;                   ///< open
  std::uint64_t pushed_bytes = 0, dropped_items = 0;
  std::uint64_t restored_items = 0, corrupt_items = 0, expired_leases = 0;
  DI_FIELDS(kv_agent_state, m.rank, m.life, m.view, m.held_items, m.held_bytes, m.reserved_bytes,
            m.leases, m.owned, m.queued_bytes, m.restores, m.pushed_bytes, m.dropped_items,
            m.restored_items, m.corrupt_items, m.expired_leases)
};

using kv_agent_messages =
    type_list<pages_sealed, reserve_pages, pages_reserved, push_pages, pages_landed, release_pages,
              pages_released, restore_pages, pages_restored, fetch_pages, pages_fetched,
              get_kv_agent, kv_agent_state>;

} // namespace di::proto
