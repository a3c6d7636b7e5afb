// SPDX-License-Identifier: Apache-2.0
// What an agent holds for other ranks: pieces by address, who holds a lease on which, room that is
// promised, and which attempts are over.
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/proto/kv_agent.hpp"

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace di::engine {

/// Checksum of a piece, made where it was computed and compared wherever it arrives.
std::uint32_t kv_checksum(const proto::kv_item& item, std::span<const std::byte> bytes) noexcept;

/// A piece is held once however many leases name it, and goes with the last of them. Promised room
/// and held bytes together stay within the bound. Owned by kv_agent_core.
class kv_store {
public:
  /// @param bytes_max     [bytes] held and promised
  /// @param fences_kept   requests whose last released attempt is remembered
  explicit kv_store(std::uint64_t bytes_max, std::size_t fences_kept = 8192)
      : bytes_max_{bytes_max}, fences_kept_{fences_kept} {}

  struct piece {
    proto::kv_item item;
    std::vector<std::byte> bytes;
  };

  /// Whether the attempt, or a newer one of the request, was released here.
  bool is_over(const proto::kv_lease& lease) const;
  /// Opens the lease if need be, ends its reservation of a smaller number, and says to each piece
  /// what becomes of it. A number that is not newer than the last is answered from what is here.
  std::vector<proto::kv_verdict> reserve(const proto::kv_lease& lease, std::uint64_t number,
                                         std::span<const proto::kv_item> items);
  /// Stores what was reserved under this number and is whole; what comes again is `held`.
  /// @param bytes  of all items, one behind the other
  /// @param broken  counts pieces whose checksum does not match
  std::vector<proto::kv_verdict> push(const proto::kv_lease& lease, std::uint64_t number,
                                      std::span<const proto::kv_item> items,
                                      std::span<const std::byte> bytes, std::uint64_t& broken);
  /// Ends every lease of the request up to and including this attempt, and fences them.
  void release(const proto::kv_lease& upto);
  /// Ends one lease; no fence.
  void forget(const proto::kv_lease& lease);

  const piece* find(const proto::kv_address& at) const;
  bool holds(const proto::kv_lease& lease) const { return leases_.contains(lease); }
  std::vector<proto::kv_lease> leases() const;
  std::vector<proto::kv_lease> leases_of(request_id request) const;
  /// Of the request's leases; 0: it has none.
  std::uint32_t newest_attempt(request_id request) const;
  /// When the lease ends if nobody claims it; none: its owner lives.
  std::optional<instant> orphaned(const proto::kv_lease& lease) const;
  void set_orphaned(const proto::kv_lease& lease, std::optional<instant> ends);

  std::size_t items() const noexcept { return pieces_.size(); }
  std::uint64_t held_bytes() const noexcept { return held_; }
  std::uint64_t reserved_bytes() const noexcept { return reserved_; }
  std::size_t lease_count() const noexcept { return leases_.size(); }
  void check() const;

private:
  struct stored {
    piece what;
    std::uint32_t references = 0;
  };
  struct held_lease {
    std::set<proto::kv_address> pieces;
    std::map<std::uint32_t, proto::kv_address> windows; ///< by choice: the longest
    std::uint64_t number = 0;                           ///< last reservation
    std::map<proto::kv_address, std::uint32_t> open;    ///< [bytes] of it, not landed
    std::optional<instant> orphan_ends;
  };
  using lease_map = std::map<proto::kv_lease, held_lease>;

  void hold(held_lease& l, const proto::kv_item& item);
  void drop(held_lease& l, proto::kv_address at);
  void void_reservation(held_lease& l);
  lease_map::iterator end_lease(lease_map::iterator at);
  void fence(request_id request, std::uint32_t attempt);

  std::uint64_t bytes_max_;
  std::size_t fences_kept_;
  std::map<proto::kv_address, stored> pieces_;
  lease_map leases_;
  std::map<request_id, std::uint32_t> over_; ///< last released attempt
  std::deque<request_id> over_order_;
  std::uint64_t held_ = 0, reserved_ = 0;
};

} // namespace di::engine
