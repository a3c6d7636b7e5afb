// SPDX-License-Identifier: Apache-2.0
// State of one sequence: page bookkeeping, rollback, fingerprint.
#include "engine/model/sequence_state.hpp"

#include <algorithm>
#include <cstring>

namespace di::engine {

namespace {

/// FNV-1a over 64-bit words; fast enough to run after every step of a test.
class fingerprint {
public:
  void add(std::uint64_t word) noexcept {
    for (int shift = 0; shift < 64; shift += 32)
      value_ = (value_ ^ ((word >> shift) & 0xFFFFFFFFu)) * 0x100000001B3ull;
  }
  void add(const void* data, std::size_t bytes) noexcept {
    const auto* at = static_cast<const std::byte*>(data);
    for (; bytes >= 8; bytes -= 8, at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, 8);
      add(word);
    }
    std::uint64_t word = 0;
    if (bytes > 0)
      std::memcpy(&word, at, bytes);
    add(word + bytes);
  }
  std::uint64_t value() const noexcept { return value_; }

private:
  std::uint64_t value_ = 0xCBF29CE484222325ull;
};

} // namespace

sequence_state::sequence_state(const kv_layout& layout, page_pool& pool)
    : layout_{layout},
      pool_{pool},
      rings_(static_cast<std::size_t>(layout.layers * layout.ring_rows) * layout.window_row_bytes),
      draft_rings_(static_cast<std::size_t>(layout.draft_layers * layout.ring_rows)
                   * layout.window_row_bytes),
      tails_(layout.sources.size()),
      index_pages_(layout.sources.size()) {
  DI_CHECK(pool.page_bytes() >= layout.page_bytes);
  for (std::size_t s = 0; s < layout.sources.size(); ++s)
    if (layout.sources[s].ratio == 2)
      tails_[s].resize(static_cast<std::size_t>(layout.tail_pairs * 2 * layout.head_dim));
}

sequence_state::~sequence_state() {
  for (const page_id page : pages_)
    pool_.release(page);
}

void sequence_state::add_page(page_id page) {
  pages_.push_back(page);
  page_data_.push_back(pool_.data(page));
  for (std::size_t s = 0; s < layout_.sources.size(); ++s)
    index_pages_[s].push_back(page_data_.back() + layout_.sources[s].index_offset);
}

void sequence_state::drop_last_page() {
  pool_.release(pages_.back());
  pages_.pop_back();
  page_data_.pop_back();
  for (auto& pages : index_pages_)
    pages.pop_back();
}

std::int64_t sequence_state::pages_wanted(std::int64_t length) const {
  if (layout_.sources.empty() || length <= this->length())
    return 0;
  const std::int64_t held = static_cast<std::int64_t>(pages_.size());
  const std::int64_t last = layout_.pages_for(length);
  std::int64_t wanted = std::max<std::int64_t>(0, last - held);
  for (std::int64_t i = first_written_page(); i < std::min(held, last); ++i)
    wanted += pool_.references(pages_[static_cast<std::size_t>(i)]) > 1 ? 1 : 0;
  return wanted;
}

std::int64_t sequence_state::first_written_page() const noexcept {
  return std::max(length(), floors_.write) / page_tokens;
}

result<void> sequence_state::reserve(std::int64_t length) {
  const std::int64_t missing = pages_wanted(length);
  if (missing == 0)
    return {};
  if (missing > static_cast<std::int64_t>(pool_.free_pages()))
    return fail(ec::kv_exhausted,
                "a sequence of {} tokens needs {} more KV pages, {} of {} are free", length,
                missing, pool_.free_pages(), pool_.pages());
  const auto last = static_cast<std::size_t>(layout_.pages_for(length));
  for (auto i = static_cast<std::size_t>(first_written_page()); i < std::min(pages_.size(), last);
       ++i) {
    if (pool_.references(pages_[i]) == 1)
      continue;
    DI_TRY(const page_id copy, pool_.acquire());
    std::byte* data = pool_.data(copy);
    std::memcpy(data, page_data_[i], layout_.page_bytes);
    pool_.release(pages_[i]);
    pages_[i] = copy;
    page_data_[i] = data;
    for (std::size_t s = 0; s < layout_.sources.size(); ++s)
      index_pages_[s][i] = data + layout_.sources[s].index_offset;
  }
  while (pages_.size() < last) {
    DI_TRY(const page_id page, pool_.acquire());
    add_page(page);
  }
  return {};
}

bool sequence_state::may_write(std::int64_t position) const {
  const auto page = static_cast<std::size_t>(position / page_tokens);
  return position >= floors_.write && page < pages_.size() && pool_.references(pages_[page]) == 1;
}

result<void> sequence_state::truncate(std::int64_t length) {
  if (length < 0 || length > this->length())
    return fail(ec::bad_argument, "cannot cut a sequence of {} tokens to {}", this->length(),
                length);
  const bool moves = length != 0 && length != this->length();
  if (moves && length < adopted_)
    return fail(ec::bad_argument, "cannot take back to {} tokens: {} came from the prefix cache",
                length, adopted_);
  if (moves && length < longest_ - layout_.verify_rows)
    return fail(
        ec::bad_argument,
        "cannot take back to {} tokens: rows up to {} were written and only {} can be undone",
        length, longest_, layout_.verify_rows);
  if (length == 0) {
    longest_ = 0;
    adopted_ = 0;
    floors_ = {};
  }
  open_rows_ = 0;
  tokens_.resize(static_cast<std::size_t>(length));
  draft_end_ = std::min(draft_end_, length);
  draft_gap_ = std::min(draft_gap_, draft_end_);
  const auto kept = static_cast<std::size_t>(layout_.pages_for(std::max(length, adopted_)));
  while (pages_.size() > kept)
    drop_last_page();
  return {};
}

void sequence_state::commit(std::span<const token_id> tokens) {
  open_rows_ = 0;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  longest_ = std::max(longest_, length());
}

std::uint64_t sequence_state::hash() const {
  fingerprint print;
  print.add(tokens_.data(), tokens_.size() * sizeof(token_id));
  const std::int64_t first = std::max<std::int64_t>(0, length() - layout_.window + 1);
  for (std::int64_t layer = 0; layer < layout_.layers; ++layer)
    for (std::int64_t position = std::max(first, window_floor(layer)); position < length();
         ++position)
      print.add(window_row(layer, position), layout_.window_row_bytes);
  auto* self = const_cast<sequence_state*>(this); // rows are only read
  for (std::size_t s = 0; s < layout_.sources.size(); ++s) {
    const kv_source_layout& source = layout_.sources[s];
    for (std::int64_t entry = 0; entry < length() / source.ratio; ++entry) {
      print.add(self->main_row(s, entry), source.main_row_bytes);
      print.add(self->index_row(s, entry), source.index_row_bytes);
    }
    if (source.ratio == 2 && length() % 2 == 1)
      print.add(self->tail(s, length() - 1),
                static_cast<std::size_t>(2 * layout_.head_dim) * sizeof(float));
  }
  return print.value();
}

void sequence_state::draft_fed(std::int64_t first, std::int64_t end) {
  DI_CHECK(draft_end_ <= first && first <= end && end <= length());
  if (first > draft_end_)
    draft_gap_ = first;
  draft_end_ = end;
}

std::uint64_t sequence_state::draft_hash() const {
  fingerprint print;
  print.add(static_cast<std::uint64_t>(draft_begin()));
  print.add(static_cast<std::uint64_t>(draft_end_));
  for (std::int64_t layer = 0; layer < layout_.draft_layers; ++layer)
    for (std::int64_t position = draft_begin(); position < draft_end_; ++position)
      print.add(draft_row(layer, position), layout_.window_row_bytes);
  return print.value();
}

} // namespace di::engine
