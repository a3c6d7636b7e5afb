// SPDX-License-Identifier: Apache-2.0
// Which KV pages hold which tokens: pages of earlier sequences by the tokens that they stand for,
// so that a later prompt with the same beginning uses them without a copy; and window snapshots.
#pragma once

#include "engine/kv/page_pool.hpp"
#include "engine/kv/window_snapshot.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace di::engine {

/// Whose pages may serve whom.
struct prefix_key {
  std::string_view salt; ///< sequences of different salts share nothing
  /// 0: pages with the bits of a cold run. H: from token H on, pages written behind a bounded hit
  /// of H tokens; their bits depend on H, so only sequences with the same H meet them; the pages
  /// below H are those of a cold run.
  std::int64_t bounded_hit = 0;
};

/// Name of a page by what it stands for: the hash chain up to it. Equal on every rank.
struct page_address {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const page_address&, const page_address&) = default;
};

/// Name of windows at the end of a page: they depend on the decoder floor too.
/// @param layers  rings that they cover
page_address windows_address(const page_address& page, std::int64_t decoder_floor,
                             std::int64_t layers) noexcept;

struct prefix_match {
  std::int64_t hit = 0;       ///< [tokens] a multiple of the page size
  std::vector<page_id> pages; ///< [hit / page tokens]; no reference is taken
  /// The longest snapshot at or below the asked limit and the hit; null: none.
  std::shared_ptr<const window_snapshot> snapshot;
};

/// Where publish() goes on for one sequence. A default one starts at the beginning; it is never
/// wrong, at worst slow.
struct prefix_cursor {
  std::uint32_t node = 0; ///< last published page's node
  std::uint64_t life = 0; ///< of that node; 0: none
  std::size_t pages = 0;  ///< pages published so far
};

struct prefix_index_options {
  std::string contract;           ///< contract id; part of every address
  std::int64_t page_tokens = 128; ///< [tokens] of one page
  std::size_t snapshot_bytes = 0; ///< [bytes] of all snapshots together; 0: keeps none
  unsigned address_bits = 128;    ///< fewer only to test what equal addresses do
};

struct prefix_index_counts {
  std::uint64_t lookups = 0, hits = 0; ///< matches asked for, of them with at least a page
  std::uint64_t looked_up_tokens = 0, hit_tokens = 0;
  std::uint64_t published_pages = 0, evicted_pages = 0;
  std::uint64_t snapshots_kept = 0, snapshots_dropped = 0;
};

/// Pages by content: a tree of pages whose addresses are a 128-bit hash chain over contract id,
/// salt, (H behind a bounded hit) and token ids. Tokens are compared too, so equal hashes of
/// different texts never meet.
///
/// The index holds one reference on each of its pages. A page that nobody else holds may be
/// evicted: least recently used first, leaves before what they stand on. Owned by RANK, used on its
/// thread only.
class prefix_index {
public:
  /// @param pool  outlives the index
  prefix_index(page_pool& pool, prefix_index_options options);
  prefix_index(const prefix_index&) = delete;
  prefix_index& operator=(const prefix_index&) = delete;
  ~prefix_index();

  /// Longest known beginning of `tokens` and what stands for it. Take references (adopt) before the
  /// next call that evicts.
  /// @param limit           [tokens] no longer hit than this
  /// @param snapshot_limit  [tokens] no longer snapshot than this; 0: none wanted
  prefix_match match(std::span<const token_id> tokens, const prefix_key& key, std::int64_t limit,
                     snapshot_kind kind, std::int64_t snapshot_limit);

  /// Length of the hit that match() would find; leaves ages and counts as they are. [tokens]
  std::int64_t known(std::span<const token_id> tokens, const prefix_key& key,
                     std::int64_t limit) const;

  /// Appends the names of the pages of `tokens` from out.size() on; whole pages only.
  /// @param out  of the same tokens and key
  void name_pages(std::span<const token_id> tokens, const prefix_key& key,
                  std::vector<page_address>& out) const;

  /// Makes pages known whose bytes were computed elsewhere, as if they had been computed here.
  /// @param first  pages before it are known, or nothing is done
  /// @param pages  [pages] bytes from page `first` on, each at most the pool's page
  /// @return       [tokens] of the beginning that is known then
  /// @errors       ec::kv_exhausted, ec::bad_argument
  result<std::int64_t> import_pages(std::span<const token_id> tokens, const prefix_key& key,
                                    std::size_t first,
                                    std::span<const std::span<const std::byte>> pages);

  /// Makes full pages of a sequence known. Idempotent: what is known already stays as it is, the
  /// sequence keeps its own page then.
  /// @param tokens  COMMITTED tokens only, from position 0; a last partial page is not taken
  /// @param pages   of the sequence, at least tokens.size() / page tokens
  /// @param cursor  of the sequence; moved on
  void publish(prefix_cursor& cursor, std::span<const token_id> tokens,
               std::span<const page_id> pages, const prefix_key& key);

  /// Keeps a snapshot at the page that ends at tokens.size(); drops the least recently used ones
  /// above the bound. Does nothing if the page is not known, has one already, or it is too large.
  /// @param near  here and below: of a sequence with these tokens; saves the search
  void keep_snapshot(std::span<const token_id> tokens, const prefix_key& key, snapshot_kind kind,
                     std::shared_ptr<const window_snapshot> snapshot,
                     const prefix_cursor& near = {});
  /// True if keep_snapshot() would take one there: ask before copying windows.
  bool wants_snapshot(std::span<const token_id> tokens, const prefix_key& key, snapshot_kind kind,
                      const prefix_cursor& near = {});
  bool keeps_snapshots() const noexcept { return options_.snapshot_bytes > 0; }
  /// Drops the snapshot at the page that ends at tokens.size(), if there is one.
  void forget_snapshot(std::span<const token_id> tokens, const prefix_key& key, snapshot_kind kind,
                       const prefix_cursor& near = {});

  /// Evicts up to `pages` pages. @return how many were freed
  std::uint32_t evict(std::uint32_t pages);
  /// Evicts until the pool has `pages` free ones.
  /// @errors ec::kv_exhausted; then nothing was evicted
  result<void> make_room(std::uint32_t pages);
  /// Pages that evict() could free now. Walks over all nodes if references changed since the last
  /// time.
  std::uint32_t evictable_pages() const;
  /// Forgets everything.
  void clear();

  std::size_t pages() const noexcept { return by_address_.size(); } ///< held
  std::size_t snapshot_bytes() const noexcept { return snapshot_bytes_; }
  const prefix_index_counts& counts() const noexcept { return counts_; }

  /// Proves that every page of the pool is free, held by the index once or named in `held` (all
  /// references of sequences, one entry each), and that tree, ages and snapshots are consistent.
  /// @errors ec::internal
  result<void> check(std::span<const page_id> held) const;

private:
  using address = page_address;
  struct address_hash {
    std::size_t operator()(const address& a) const noexcept {
      return static_cast<std::size_t>(a.low);
    }
  };
  static constexpr std::uint32_t none = 0xFFFFFFFFu;
  /// One known page. Between two calls a node's parent was used at least as recently as the node,
  /// so the oldest node is a leaf.
  struct node {
    address at;
    std::uint64_t life = 0; ///< 0: slot unused; else unique for this use of the slot
    std::uint32_t parent = none, children = 0;
    std::uint32_t older = none, newer = none; ///< order of use
    page_id page;
    std::int64_t bounded_hit = 0;
    std::string salt;                                                ///< of pages without parent
    std::vector<token_id> tokens;                                    ///< [page tokens]
    std::array<std::shared_ptr<const window_snapshot>, 2> snapshots; ///< by kind
    std::array<std::uint64_t, 2> snapshot_age{};                     ///< by kind; last use
  };
  struct step {
    address at;
    std::uint32_t found = none;
    bool collides = false; ///< another text has this address
  };
  static std::int64_t lineage_at(const prefix_key& key, std::size_t position) noexcept;

  address root(std::string_view salt) const;
  address weakened(const address& a) const noexcept;
  step look_up(const address& above, std::uint32_t parent, std::span<const token_id> tokens,
               std::int64_t bounded_hit, std::string_view salt) const;
  std::vector<std::uint32_t> walk(std::span<const token_id> tokens, const prefix_key& key) const;
  std::uint32_t node_ending_at(std::span<const token_id> tokens, const prefix_key& key,
                               const prefix_cursor& near) const;
  std::uint32_t insert(const address& at, std::uint32_t parent, page_id page,
                       std::span<const token_id> tokens, std::int64_t bounded_hit,
                       std::string_view salt);
  void touch(std::uint32_t node);
  void touch_path(std::uint32_t leaf);
  void unlink(std::uint32_t node);
  void remove(std::uint32_t node);
  void drop_snapshot(std::uint32_t node, std::size_t kind);
  bool evictable(std::uint32_t node) const;

  page_pool& pool_;
  prefix_index_options options_;
  address contract_;
  std::vector<node> nodes_;
  std::vector<std::uint32_t> free_nodes_;
  std::unordered_map<address, std::uint32_t, address_hash> by_address_;
  std::uint32_t oldest_ = none, newest_ = none;
  std::uint64_t lives_ = 0, clock_ = 0;
  std::map<std::uint64_t, std::pair<std::uint32_t, std::size_t>> by_age_; ///< snapshots: node, kind
  std::size_t snapshot_bytes_ = 0;
  prefix_index_counts counts_;
  mutable std::uint64_t counted_at_ = ~std::uint64_t{0}; ///< pool_.changes() of evictable_
  mutable std::uint32_t evictable_ = 0;
};

} // namespace di::engine
