// SPDX-License-Identifier: Apache-2.0
// KV pieces of a rank's sequences on their way out and in: what is sealed is copied for KV_AGENT,
// what KV_AGENT brings back is put where sequences of a resumed attempt begin.
#pragma once

#include "engine/core/kv_ledger.hpp"
#include "engine/model/prefix_cache.hpp"
#include "messaging/proto/kv_agent.hpp"
#include "messaging/proto/rank.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace di::actors {

struct kv_transfer_options {
  bool enabled = false;
  std::uint64_t bytes_max = std::uint64_t{32} << 20; ///< [bytes] of copies alive in this process;
                                                     ///< beyond it pages wait where they are
  std::uint32_t tokens_min = 256; ///< [tokens] a shorter beginning is computed again
  double token_us = 0;            ///< [us] to compute a token; 0: as measured
};

/// How a resumed sequence begins.
struct resumed_kv {
  std::uint32_t attempt = 0;
  std::shared_ptr<const engine::window_snapshot> windows; ///< null: pages only
};

/// Owned by rank_kv, used on RANK's thread only.
class kv_transfer {
public:
  /// @param layout, pool, cache  outlive it
  kv_transfer(const engine::kv_layout& layout, const engine::page_pool& pool,
              engine::prefix_cache& cache, kv_transfer_options options)
      : layout_{layout}, pool_{pool}, cache_{cache}, options_{options} {}

  bool enabled() const noexcept { return options_.enabled && !layout_.sources.empty(); }

  // --- out
  void open(engine::sequence_key key, const engine::kv_opening& what);
  void close(engine::sequence_key key);
  /// `to` goes on from the first `tokens` rows of `from`.
  void fork(engine::sequence_key from, engine::sequence_key to, std::uint32_t tokens);
  /// After a step: copies pages that are full, and windows where they are due. @pre no step
  /// computes the sequence
  void advanced(engine::sequence_key key, const engine::prefix_session& session,
                const engine::sequence_state& sequence, std::uint32_t settled);
  /// Windows of a prompt are due at its last page boundary: a step should end there.
  std::uint32_t chunk_end(engine::sequence_key key, std::uint32_t position) const;
  /// What is to be told to KV_AGENT.
  std::vector<proto::pages_sealed> take_sealed();
  /// Others hold the copies now: everything is offered again.
  void offer_again();

  // --- in
  /// What would help this attempt to begin; none: it begins as any other.
  /// @param token_us  [us] to compute one token
  std::optional<proto::restore_pages> wants(const proto::assign_request& m, double token_us) const;
  /// Puts what came into the prefix index, windows aside until their sequence begins.
  void import(const proto::assign_request& m, const proto::pages_restored& restored);
  /// What was imported for a choice; null: nothing was.
  const resumed_kv* resumed(request_id request, std::uint32_t choice) const;
  /// The choice has begun, or never will.
  void forget(request_id request, std::uint32_t choice) { resumed_.erase({request, choice}); }
  void forget(request_id request) { forget_until(request, ~0U); }
  /// All choices of this attempt and older ones.
  void forget_until(request_id request, std::uint32_t attempt);

  /// A request as its pages are known under: one without prefix reuse has a salt of its own, and
  /// one that began without a bounded hit is as exact as a cold run.
  static engine::prefill_request known_as(const proto::request_spec& spec, std::string& salt);

private:
  struct outgoing {
    request_id request;
    std::uint32_t attempt = 0, choice = 0;
    std::vector<engine::page_address> addresses;
    std::size_t sent = 0;      ///< [pages]
    std::int64_t windows = 0;  ///< [tokens] where the last ones were taken
    std::int64_t boundary = 0; ///< [tokens] last page boundary below what was known at its start
  };
  /// Counts its bytes in a gauge while it lives, on whatever thread that ends.
  struct copy {
    std::vector<std::byte> bytes;
    std::shared_ptr<std::atomic<std::uint64_t>> gauge;
    copy(std::vector<std::byte> b, std::shared_ptr<std::atomic<std::uint64_t>> g);
    copy(const copy&) = delete;
    copy& operator=(const copy&) = delete;
    ~copy();
  };
  bool has_room(std::uint64_t bytes) const noexcept;
  void seal(const outgoing& o, std::vector<proto::kv_item> items, std::vector<std::byte> bytes);
  void take_pages(outgoing& o, const engine::sequence_state& sequence, std::size_t full);
  void take_windows(outgoing& o, const engine::prefix_session& session,
                    const engine::sequence_state& sequence, std::int64_t length);
  void import_choice(const proto::assign_request& m, const proto::choice_progress& progress,
                     const std::map<proto::kv_address, std::span<const std::byte>>& pieces);

  const engine::kv_layout& layout_;
  const engine::page_pool& pool_;
  engine::prefix_cache& cache_;
  kv_transfer_options options_;
  std::unordered_map<engine::sequence_key, outgoing> outgoing_;
  std::vector<proto::pages_sealed> sealed_;
  std::map<std::pair<request_id, std::uint32_t>, resumed_kv> resumed_; ///< until they begin
  std::shared_ptr<std::atomic<std::uint64_t>> gauge_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

} // namespace di::actors
