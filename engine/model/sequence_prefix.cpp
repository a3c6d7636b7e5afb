// SPDX-License-Identifier: Apache-2.0
// State of one sequence: floors, starting behind a cached prefix, snapshots, forks.
#include "engine/model/sequence_state.hpp"

#include <algorithm>
#include <cstring>

namespace di::engine {

std::int64_t sequence_state::row_floor(std::int64_t layer) const noexcept {
  const std::int64_t cut = std::max<std::int64_t>(layout_.encoder_layers() - 1, 0);
  if (layer >= cut && floors_.decoder > 0)
    return floors_.decoder;
  return floors_.ramp ? floors_.encoder + (layer + 1) * (layout_.window - 1) : 0;
}

result<void> sequence_state::set_floors(const sequence_floors& floors) {
  if (!tokens_.empty() || !pages_.empty())
    return fail(ec::bad_argument, "floors of a sequence that has {} tokens cannot change",
                tokens_.size());
  if (floors.encoder < 0 || floors.decoder < 0 || floors.write < 0
      || floors.write % page_tokens != 0)
    return fail(ec::bad_argument, "floors {}, {}, {}: expected none negative, the last whole pages",
                floors.encoder, floors.decoder, floors.write);
  floors_ = floors;
  return {};
}

std::int64_t sequence_state::rings_to_keep(snapshot_kind kind) const noexcept {
  return kind == snapshot_kind::full ? layout_.layers : layout_.encoder_layers();
}

result<void> sequence_state::adopt(std::span<const token_id> tokens, std::span<const page_id> pages,
                                   const sequence_floors& floors, std::int64_t first_row,
                                   const window_snapshot* snapshot) {
  const auto hit = static_cast<std::int64_t>(tokens.size());
  const auto needed = layout_.sources.empty() ? 0 : layout_.pages_for(hit);
  if (hit % page_tokens != 0 || static_cast<std::int64_t>(pages.size()) != needed
      || floors.write != hit)
    return fail(ec::bad_argument, "a prefix of {} tokens on {} pages with write floor {} is none",
                hit, pages.size(), floors.write);
  if (first_row < 0 || first_row > hit || (snapshot == nullptr && first_row != floors.encoder))
    return fail(ec::bad_argument,
                "row {} of a prefix of {} tokens needs the windows below it (floor {})", first_row,
                hit, floors.encoder);
  if (snapshot != nullptr) {
    const bool all = snapshot->layers == layout_.layers;
    if (snapshot->length != first_row
        || (!all && (snapshot->layers != layout_.encoder_layers() || first_row > floors.decoder))
        || snapshot->rows < std::min(first_row - floors.encoder, layout_.window - 1)
        || snapshot->rings.size()
               != static_cast<std::size_t>(snapshot->layers * snapshot->rows)
                      * layout_.window_row_bytes
        || snapshot->draft_rings.size()
               != static_cast<std::size_t>(layout_.draft_layers * snapshot->draft_rows)
                      * layout_.window_row_bytes)
      return fail(ec::bad_argument,
                  "a snapshot of {} rows of {} layers at {} does not fit row {} of this sequence",
                  snapshot->rows, snapshot->layers, snapshot->length, first_row);
  }
  DI_TRY_VOID(set_floors(floors));
  for (const page_id page : pages) {
    pool_.share(page);
    add_page(page);
  }
  adopted_ = hit;
  tokens_.assign(tokens.begin(), tokens.begin() + first_row);
  longest_ = first_row;
  if (snapshot != nullptr)
    restore(*snapshot);
  return {};
}

void sequence_state::restore(const window_snapshot& snapshot) {
  const std::size_t bytes = layout_.window_row_bytes;
  const std::byte* row = snapshot.rings.data();
  for (std::int64_t layer = 0; layer < snapshot.layers; ++layer)
    for (std::int64_t p = snapshot.length - snapshot.rows; p < snapshot.length; ++p, row += bytes)
      std::memcpy(window_row(layer, p), row, bytes);
  row = snapshot.draft_rings.data();
  for (std::int64_t layer = 0; layer < layout_.draft_layers && snapshot.draft_rows > 0; ++layer)
    for (std::int64_t p = snapshot.length - snapshot.draft_rows; p < snapshot.length;
         ++p, row += bytes)
      std::memcpy(draft_row(layer, p), row, bytes);
  draft_gap_ = snapshot.length - snapshot.draft_rows;
  draft_end_ = snapshot.length;
}

result<void> sequence_state::rebase(const sequence_floors& floors) {
  const std::int64_t hit = length();
  if (hit % page_tokens != 0 || floors.write != hit || floors.encoder < 0 || floors.encoder > hit
      || floors.ramp || open_rows_ > 0)
    return fail(ec::bad_argument, "cannot start again behind {} tokens from {}, write floor {}",
                hit, floors.encoder, floors.write);
  floors_ = floors;
  adopted_ = hit;
  longest_ = draft_gap_ = draft_end_ = floors.encoder;
  tokens_.resize(static_cast<std::size_t>(floors.encoder));
  return {};
}

result<window_snapshot> sequence_state::snapshot(std::int64_t length, snapshot_kind kind) const {
  if (kind == snapshot_kind::full && floors_.decoder > 0)
    return fail(ec::bad_argument, "a full snapshot of a sequence with decoder floor {}",
                floors_.decoder);
  return copy_windows(length, rings_to_keep(kind), kind == snapshot_kind::full);
}

result<window_snapshot> sequence_state::resume_windows(std::int64_t length) const {
  return copy_windows(length, layout_.layers, true);
}

result<window_snapshot> sequence_state::copy_windows(std::int64_t length, std::int64_t layers,
                                                     bool drafts) const {
  if (open_rows_ > 0)
    return fail(ec::bad_argument, "no windows at {}: a step is writing {} rows from {} on", length,
                open_rows_, this->length());
  if (length <= 0 || length % page_tokens != 0 || length > this->length()
      || length < longest_ - layout_.verify_rows || length < adopted_)
    return fail(ec::bad_argument, "no windows at {} any more: the sequence is at {}", length,
                this->length());
  window_snapshot out;
  out.length = length;
  out.layers = layers;
  out.rows = std::min(length, layout_.window - 1);
  out.rings.resize(static_cast<std::size_t>(out.layers * out.rows) * layout_.window_row_bytes);
  std::byte* row = out.rings.data();
  for (std::int64_t layer = 0; layer < out.layers; ++layer)
    for (std::int64_t p = length - out.rows; p < length; ++p) {
      std::memcpy(row, window_row(layer, p), layout_.window_row_bytes);
      row += layout_.window_row_bytes;
    }
  if (drafts && draft_end_ >= length)
    out.draft_rows = length - std::max(draft_gap_, length - layout_.window);
  out.draft_rows = std::max<std::int64_t>(out.draft_rows, 0);
  out.draft_rings.reserve(static_cast<std::size_t>(layout_.draft_layers * out.draft_rows)
                          * layout_.window_row_bytes);
  for (std::int64_t layer = 0; layer < layout_.draft_layers; ++layer)
    for (std::int64_t p = length - out.draft_rows; p < length; ++p) {
      const std::byte* from = draft_row(layer, p);
      out.draft_rings.insert(out.draft_rings.end(), from, from + layout_.window_row_bytes);
    }
  return out;
}

std::unique_ptr<sequence_state> sequence_state::fork() const {
  DI_CHECK(open_rows_ == 0);
  auto copy = std::make_unique<sequence_state>(layout_, pool_);
  copy->floors_ = floors_;
  copy->adopted_ = adopted_;
  copy->tokens_ = tokens_;
  copy->longest_ = longest_;
  copy->rings_ = rings_;
  copy->draft_rings_ = draft_rings_;
  copy->draft_gap_ = draft_gap_;
  copy->draft_end_ = draft_end_;
  copy->tails_ = tails_;
  const auto shared = static_cast<std::size_t>(
      layout_.sources.empty() ? 0 : layout_.pages_for(std::max(length(), adopted_)));
  for (std::size_t i = 0; i < shared; ++i) {
    pool_.share(pages_[i]);
    copy->add_page(pages_[i]);
  }
  return copy;
}

} // namespace di::engine
