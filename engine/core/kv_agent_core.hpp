// SPDX-License-Identifier: Apache-2.0
// Decisions of KV_AGENT: where copies of sealed KV go and how fast, what is held for others and
// until when, and where a resumed attempt gets its pieces from. Computes nothing; a loss here costs
// a recomputation, never a byte.
#pragma once

#include "engine/core/kv_store.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/kv_agent.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/outbox.hpp"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace di::engine {

struct kv_agent_options {
  rank_id rank;
  incarnation life{};
  std::uint32_t replicas = 0;                           ///< buddies per request; 0: none
  std::uint64_t bandwidth = std::uint64_t{256} << 20;   ///< [bytes/s] pushed; 0: no limit
  std::uint64_t held_bytes = std::uint64_t{1} << 30;    ///< [bytes] for others at most
  std::uint64_t queued_bytes = std::uint64_t{64} << 20; ///< [bytes] own pieces on their way
  std::uint64_t message_bytes = std::uint64_t{1} << 20; ///< [bytes] of one push; one piece at least
  std::uint64_t fetch_bytes = std::uint64_t{4} << 20;   ///< [bytes] of one answer
  duration resend_after = std::chrono::milliseconds{200};
  std::uint32_t sends_max = 4; ///< of one message; then this buddy gets no more of the lease
  duration orphan_after = std::chrono::seconds{30}; ///< a lease without owner, unless claimed
  double fetch_rate = 512.0 * 1024 * 1024;          ///< [bytes/s] assumed until one was measured
};

/// Ranks that keep copies of a request of `owner`, the first `replicas` that are there: by
/// rendezvous hash over the view's other ranks, those on another node first. Pure, so whoever knows
/// the view finds them.
std::vector<proto::view_member> buddies_of(const proto::view_committed& view, request_id request,
                                           rank_id owner, std::uint32_t replicas);
/// Ranks that may hold pieces of a request whose owner is gone from the view: what buddies_of() of
/// any owner on any node would have named, and one more each for a view that has changed since.
std::vector<proto::view_member> holders_of(const proto::view_committed& view, request_id request,
                                           rank_id asker, std::uint32_t replicas);

/// Owner's side; a channel is one lease at one buddy, one message open at a time:
///
// clang-format off
///   state      pages_sealed   room in the bandwidth     answer                       no answer
///   idle       queued         reserve_pages, asking     -                            -
///   asking     queued         -                         wanted: push_pages, pushing  again; too often: cut
///                                                       none wanted: idle
///   pushing    queued         -                         landed: idle; broken: again  again; too often: cut
///   cut        dropped        -                         -                            -
///   releasing  dropped        -                         released: gone               again, until the buddy
///                                                                                    has left the view
///
/// Holder's side; a lease of (request, attempt, owner, life):
///
///   state      reserve (newer number)    push (its number)      release (same or newer attempt)
///   unknown    held, unless fenced       refused                answered, remembered as a fence
///   held       room for what is wanted   stored if whole        gone
///   orphan     as held, and claimed      as held                gone; after orphan_after too
///
///   fenced: a released attempt or an older one; a life that has left the view. A lease is an
///   orphan once its owner's life is not in the view, or a newer attempt of its request reserves
///   here. A release names an attempt: it never touches what a newer one holds.
///
/// Asker's side; one restore per resumed attempt:
///
///   locating   every possible holder is asked what is there   all answered, or half the time over
///   fetching   each piece from one of those that have it       all there, nobody left, or time over
///   done       pages_restored: pages without a gap, windows that stand on them
// clang-format on
///
/// Owned by the KV_AGENT shell; used on its thread only.
class kv_agent_core {
public:
  explicit kv_agent_core(kv_agent_options options);
  ~kv_agent_core();

  void on(const proto::view_committed& m, instant now, outbox& out);
  void on(const proto::pages_sealed& m, instant now, outbox& out);
  void on(const proto::release_pages& m, instant now, outbox& out);
  void on(const proto::reserve_pages& m, instant now, outbox& out);
  void on(const proto::pages_reserved& m, instant now, outbox& out);
  void on(const proto::push_pages& m, instant now, outbox& out);
  void on(const proto::pages_landed& m, instant now, outbox& out);
  void on(const proto::pages_released& m, instant now, outbox& out);
  void on(const proto::restore_pages& m, instant now, outbox& out);
  void on(const proto::fetch_pages& m, instant now, outbox& out);
  void on(const proto::pages_fetched& m, instant now, outbox& out);
  result<proto::kv_agent_state> on(const proto::get_kv_agent& m) const;
  void on_due(timer which, instant now, outbox& out);

  const kv_store& store() const noexcept { return store_; }
  std::size_t channels() const noexcept { return channels_.size(); }
  std::size_t restores() const noexcept { return restores_.size(); }
  /// Nothing is held, promised, queued or waited for.
  bool is_empty() const;
  void check() const;

private:
  enum timer_kind : std::uint32_t { tick_due = 1, pace_due = 2 };
  enum class channel_state : std::uint8_t { idle, asking, pushing, cut, releasing };
  struct piece;
  struct channel;
  struct holder;
  struct wish;
  struct restore;
  enum class restore_state : std::uint8_t { locating, fetching, done };
  struct channel_key {
    proto::kv_lease lease;
    rank_id holder;
    friend constexpr auto operator<=>(const channel_key&, const channel_key&) = default;
  };
  using channel_map = std::map<channel_key, std::unique_ptr<channel>>;

  // kv_agent_push.cpp: the owner
  proto::kv_lease own_lease(request_id request, std::uint32_t attempt) const;
  channel& open_channel(const channel_key& key, incarnation life);
  void open_buddies(const proto::kv_lease& lease);
  void queue(channel& c, const std::shared_ptr<const piece>& p);
  void make_ready(channel& c);
  void cut(channel& c);
  void release_channel(channel& c, instant now, outbox& out);
  void refill(instant now);
  void pump(instant now, outbox& out);
  void begin_batch(channel& c, instant now, outbox& out);
  void send_open(channel& c, instant now, outbox& out);
  void finish_batch(channel& c);
  channel* answered(const proto::kv_lease& lease, rank_id by, incarnation life);
  // kv_agent_hold.cpp: the holder
  ec fence(const proto::kv_lease& lease, epoch view) const;
  void find_orphans(instant now, outbox& out);
  void supersede(const proto::kv_lease& lease, instant now, outbox& out);
  // kv_agent_restore.cpp: the asker
  void make_wishes(restore& r) const;
  void take_own(restore& r);
  void locate(restore& r, instant now, outbox& out);
  void take_fetched(restore& r, holder& from, const proto::pages_fetched& m);
  void decide(restore& r, instant now, outbox& out);
  void fetch(restore& r, holder& from, instant now, outbox& out);
  void go_on(restore& r, instant now, outbox& out);
  void finish_restore(restore& r, outbox& out);
  void restore_due(restore& r, instant now, outbox& out);
  // kv_agent_core.cpp
  bool is_member(rank_id rank, incarnation life) const;
  void want_tick(instant due, instant now, outbox& out);

  kv_agent_options options_;
  std::optional<proto::view_committed> view_;
  kv_store store_;
  std::uint64_t queued_bytes_ = 0; ///< before channels_, whose pieces count themselves out
  channel_map channels_;
  std::deque<channel_key> ready_; ///< with something queued, in order of their turn
  double tokens_ = 0;             ///< [bytes] that may be pushed now; below 0 after a large message
  instant refilled_{};
  std::map<request_id, std::unique_ptr<restore>> restores_;
  std::uint64_t next_ticket_ = 1;
  double fetch_rate_ = 0; ///< [bytes/s] measured
  std::optional<instant> tick_at_;
  bool pace_armed_ = false;
  proto::kv_agent_state counts_;
};

/// Path of a rank's KV_AGENT.
address kv_agent_path(rank_id rank);

} // namespace di::engine
