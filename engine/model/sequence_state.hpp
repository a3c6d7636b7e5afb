// SPDX-License-Identifier: Apache-2.0
// Everything that is kept of one sequence between steps: token history, window rings, compressed
// entries in pages, pair tails. All in the model's trained formats.
#pragma once

#include "engine/kv/page_pool.hpp"
#include "engine/kv/window_snapshot.hpp"
#include "engine/model/kv_layout.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace di::engine {

/// State of one sequence. Owned by RANK, used on its thread only; gives its pages back when it
/// ends.
///
/// Taking rows back costs nothing: a row that is gone is overwritten by the next one at its
/// position, and nothing older was lost, because rings have `verify_rows` slots more than the
/// window and tails are kept per position (spec 4.2).
class sequence_state {
public:
  /// @param layout, pool  outlive the sequence; pool.page_bytes() >= layout.page_bytes
  sequence_state(const kv_layout& layout, page_pool& pool);
  sequence_state(const sequence_state&) = delete;
  sequence_state& operator=(const sequence_state&) = delete;
  ~sequence_state();

  /// Positions done; the next row has this position.
  std::int64_t length() const noexcept { return static_cast<std::int64_t>(tokens_.size()); }
  std::span<const token_id> tokens() const noexcept { return tokens_; }
  std::span<const page_id> pages() const noexcept { return pages_; }
  const kv_layout& layout() const noexcept { return layout_; }

  /// What is not computed, read or written; set before the first row. Rows that come later obey
  /// them too, so a sequence that is computed again under the same floors gets the same bits.
  /// @errors ec::bad_argument (negative, write not a multiple of the page size, rows were run)
  result<void> set_floors(const sequence_floors& floors);
  const sequence_floors& floors() const noexcept { return floors_; }

  /// Starts an EMPTY sequence behind a cached prefix: takes one reference on each page. The rows
  /// from `first_row` on are then run; those below tokens.size() write no compressed entry.
  /// @param tokens     [hit] what the pages stand for; a multiple of the page size
  /// @param pages      [hit / page tokens]
  /// @param floors     as planned (engine/model/prefill_plan.hpp)
  /// @param first_row  length() afterwards, at most hit
  /// @param snapshot   null, or windows at first_row
  /// @errors           ec::bad_argument; the sequence is unchanged
  result<void> adopt(std::span<const token_id> tokens, std::span<const page_id> pages,
                     const sequence_floors& floors, std::int64_t first_row,
                     const window_snapshot* snapshot = nullptr);

  /// Starts again behind its own tokens: keeps the pages of all length() tokens, a multiple of the
  /// page size, and runs on from floors.encoder under other floors. @errors ec::bad_argument
  result<void> rebase(const sequence_floors& floors);

  /// Copies the windows at `length`: a multiple of the page size, at most verify_rows back.
  /// @errors ec::bad_argument (also: kind full below a decoder floor; a step's rows are out)
  result<window_snapshot> snapshot(std::int64_t length, snapshot_kind kind) const;

  /// The windows of all layers at `length`, whatever the floors: they serve a sequence with the
  /// same tokens under the same floors only. @errors as snapshot(), but for the kind
  result<window_snapshot> resume_windows(std::int64_t length) const;

  /// A sequence with the same past and a future of its own (n > 1): shares all pages, copies
  /// windows and tails. Whoever first writes into a shared page gets a copy of it, in reserve().
  std::unique_ptr<sequence_state> fork() const;

  /// Pages that reserve(length) would take from the pool.
  std::int64_t pages_wanted(std::int64_t length) const;

  /// Takes pages for positions [0, length), and copies of shared pages that rows from length() on
  /// will write to. All or nothing.
  /// @errors ec::kv_exhausted
  result<void> reserve(std::int64_t length);

  /// Takes back all positions from `length` on and gives their whole pages back. Afterwards the
  /// sequence is as if those rows had never been.
  /// @param length  0 (then it is as new, without floors), or within verify_rows of the longest
  ///                length since truncate(0) and not below an adopted prefix
  /// @errors        ec::bad_argument
  result<void> truncate(std::int64_t length);

  /// Fingerprint of all state that a later step can read. Equal states give equal values. Draft
  /// rings are not in it: they may be fed or not.
  std::uint64_t hash() const;

  /// Draft rings hold rows [draft_begin(), draft_end()) of the window; draft_end() <= length().
  std::int64_t draft_begin() const noexcept {
    return std::max(draft_gap_, draft_end_ - layout_.window);
  }
  std::int64_t draft_end() const noexcept { return draft_end_; }
  /// Fingerprint of what a draft pass can read of the draft rings.
  std::uint64_t draft_hash() const;

  // --- for step_runner
  /// A layer reads no window row of a position below it.
  std::int64_t window_floor(std::int64_t layer) const noexcept {
    return layer < layout_.encoder_layers() ? floors_.encoder
                                            : std::max(floors_.encoder, floors_.decoder);
  }
  /// A layer writes window rows and entries of positions below it, and does nothing else for them;
  /// layers behind it do not see them. Does not fall from layer to layer.
  std::int64_t row_floor(std::int64_t layer) const noexcept;
  /// True if nobody else refers to the page of a position. @pre reserved
  bool may_write(std::int64_t position) const;
  /// A step begins to write `rows` rows behind length(): windows are in motion until commit().
  void begin_rows(std::int64_t rows) noexcept {
    open_rows_ = rows;
    longest_ = std::max(longest_, length() + rows);
  }
  /// Adds rows to the history once a step has written their state. @pre reserved
  void commit(std::span<const token_id> tokens);
  /// Packed window row (fp8_32) of a layer. @pre position within the last ring_rows
  std::byte* window_row(std::int64_t layer, std::int64_t position) noexcept {
    return rings_.data()
           + static_cast<std::size_t>(layer * layout_.ring_rows + position % layout_.ring_rows)
                 * layout_.window_row_bytes;
  }
  const std::byte* window_row(std::int64_t layer, std::int64_t position) const noexcept {
    return const_cast<sequence_state*>(this)->window_row(layer, position);
  }
  /// Packed main KV (fp4_16) of an entry of a source. @pre its page is reserved
  std::byte* main_row(std::size_t source, std::int64_t entry) noexcept {
    const kv_source_layout& s = layout_.sources[source];
    return page_data_[static_cast<std::size_t>(entry / s.page_entries)] + s.main_offset
           + static_cast<std::size_t>(entry % s.page_entries) * s.main_row_bytes;
  }
  /// Packed index key (fp4_32) of an entry of a source. @pre its page is reserved
  std::byte* index_row(std::size_t source, std::int64_t entry) noexcept {
    const kv_source_layout& s = layout_.sources[source];
    return page_data_[static_cast<std::size_t>(entry / s.page_entries)] + s.index_offset
           + static_cast<std::size_t>(entry % s.page_entries) * s.index_row_bytes;
  }
  /// [pages] start of a source's index keys in every page.
  const std::byte* const* index_pages(std::size_t source) const noexcept {
    return index_pages_[source].data();
  }
  /// Pair tail of an even position: [2, head_dim] fp32, a then g. @pre the source has ratio 2
  float* tail(std::size_t source, std::int64_t position) noexcept {
    return tails_[source].data()
           + static_cast<std::size_t>((position / 2) % layout_.tail_pairs * 2 * layout_.head_dim);
  }

  // --- for draft_runner
  /// Packed window row (fp8_32) of a draft layer, from 0. @pre position within the last ring_rows
  std::byte* draft_row(std::int64_t layer, std::int64_t position) noexcept {
    return draft_rings_.data()
           + static_cast<std::size_t>(layer * layout_.ring_rows + position % layout_.ring_rows)
                 * layout_.window_row_bytes;
  }
  const std::byte* draft_row(std::int64_t layer, std::int64_t position) const noexcept {
    return const_cast<sequence_state*>(this)->draft_row(layer, position);
  }
  /// Rows [first, end) were written to the draft rings; what lies before a gap is no longer read.
  /// @pre draft_end() <= first <= end <= length()
  void draft_fed(std::int64_t first, std::int64_t end);

private:
  void add_page(page_id page);
  void drop_last_page();
  std::int64_t first_written_page() const noexcept;
  void restore(const window_snapshot& snapshot);
  result<window_snapshot> copy_windows(std::int64_t length, std::int64_t layers, bool drafts) const;
  std::int64_t rings_to_keep(snapshot_kind kind) const noexcept;

  const kv_layout& layout_;
  page_pool& pool_;
  sequence_floors floors_;
  std::int64_t adopted_ = 0; ///< [tokens] of the prefix that it stands behind
  std::vector<token_id> tokens_;
  std::int64_t longest_ = 0;   ///< length whose rows may lie in the rings; truncate() must heed it
  std::int64_t open_rows_ = 0; ///< [rows] that a step is writing
  std::vector<std::byte> rings_;       ///< [layers, ring_rows, window row]
  std::vector<std::byte> draft_rings_; ///< [draft layers, ring_rows, window row]
  std::int64_t draft_gap_ = 0;         ///< nothing before it was fed
  std::int64_t draft_end_ = 0;
  std::vector<std::vector<float>> tails_;                  ///< [sources][tail_pairs, 2, head_dim]
  std::vector<page_id> pages_;                             ///< [pages]
  std::vector<std::byte*> page_data_;                      ///< [pages]
  std::vector<std::vector<const std::byte*>> index_pages_; ///< [sources][pages]
};

} // namespace di::engine
