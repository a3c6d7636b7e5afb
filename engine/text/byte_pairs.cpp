// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging: a hash table of pairs, a small loop for words, a heap for long pieces.
#include "engine/text/byte_pairs.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

namespace di::engine {
namespace {

constexpr std::uint64_t empty_slot = ~std::uint64_t{0};
constexpr unsigned rank_bits = 20;

constexpr std::uint64_t pair_key(token_id left, token_id right) {
  return static_cast<std::uint64_t>(left) << 20 | static_cast<std::uint64_t>(right);
}

constexpr std::size_t place_of(std::uint64_t key, std::size_t slots) {
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15U) >> 20) & (slots - 1);
}

} // namespace

result<byte_pairs> byte_pairs::build(const std::array<token_id, 256>& byte_ids,
                                     std::vector<merge_rule> merges) {
  if (merges.size() >= merges_max)
    return fail(ec::limit_exceeded, "{} merges, at most {} are possible", merges.size(),
                merges_max - 1);
  byte_pairs table;
  table.byte_ids_ = byte_ids;
  table.slots_.assign(std::bit_ceil(merges.size() * 2 + 16), empty_slot);
  table.results_.reserve(merges.size());
  for (std::uint32_t rank = 0; rank < merges.size(); ++rank) {
    const merge_rule& m = merges[rank];
    for (const token_id id : {m.left, m.right, m.result})
      if (id < 0 || static_cast<std::uint32_t>(id) >= ids_max)
        return fail(ec::bad_argument, "merge {} names id {}, ids lie in [0, {})", rank, id,
                    ids_max);
    const std::uint64_t key = pair_key(m.left, m.right);
    std::size_t place = place_of(key, table.slots_.size());
    for (; table.slots_[place] != empty_slot; place = (place + 1) & (table.slots_.size() - 1))
      if (table.slots_[place] >> rank_bits == key)
        return fail(ec::duplicate, "merge {} repeats merge {}", rank,
                    table.slots_[place] & (merges_max - 1));
    table.slots_[place] = key << rank_bits | rank;
    table.results_.push_back(m.result);
  }
  table.byte_ranks_.resize(std::size_t{256} * 256);
  for (std::size_t l = 0; l < 256; ++l)
    for (std::size_t r = 0; r < 256; ++r)
      table.byte_ranks_[l * 256 + r] = table.rank_of(byte_ids[l], byte_ids[r]);
  return table;
}

std::uint32_t byte_pairs::rank_of(token_id left, token_id right) const noexcept {
  const std::uint64_t key = pair_key(left, right);
  const std::uint64_t* slots = slots_.data();
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t place = place_of(key, slots_.size());; place = (place + 1) & mask) {
    const std::uint64_t slot = slots[place];
    if (slot >> rank_bits == key)
      return static_cast<std::uint32_t>(slot) & (merges_max - 1);
    if (slot == empty_slot)
      return no_rank;
  }
}

void byte_pairs::merge(std::string_view piece, std::vector<token_id>& out) const {
  if (piece.size() <= short_max)
    merge_short(piece, out);
  else
    merge_long(piece, out);
}

void byte_pairs::merge_short(std::string_view piece, std::vector<token_id>& out) const {
  std::array<token_id, short_max + 1> symbols; // NOLINT: filled below up to `count`
  std::array<std::uint32_t, short_max + 1>
      ranks; // NOLINT: ranks[i] = rank of (symbols[i], symbols[i + 1])
  std::size_t count = piece.size();
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(piece[i]); };
  for (std::size_t i = 0; i < count; ++i) {
    symbols[i] = byte_ids_[byte(i)];
    ranks[i] = i + 1 < count ? byte_ranks_[std::size_t{byte(i)} * 256 + byte(i + 1)] : no_rank;
  }
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i)
      if (ranks[i] < ranks[best])
        best = i;
    if (ranks[best] == no_rank)
      break;
    symbols[best] = results_[ranks[best]];
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
    }
    ranks[best] = best + 1 < count ? rank_of(symbols[best], symbols[best + 1]) : no_rank;
    if (best > 0)
      ranks[best - 1] = rank_of(symbols[best - 1], symbols[best]);
  }
  out.insert(out.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(count));
}

void byte_pairs::merge_long(std::string_view piece, std::vector<token_id>& out) const {
  // A linked list of symbols by the place of their first byte, and a heap of (rank, place). An
  // entry is out of date when the pair at its place has another rank by now. Places rise with the
  // text, so equal ranks leave leftmost first.
  struct link {
    token_id symbol = 0;
    std::uint32_t rank = no_rank; // of the pair that starts here
    std::size_t before = 0, after = 0;
  };
  struct entry {
    std::uint32_t rank = 0;
    std::size_t place = 0;
    auto operator<=>(const entry&) const = default;
  };
  const std::size_t end = piece.size();
  std::vector<link> links(end);
  std::vector<entry> first;
  first.reserve(end);
  for (std::size_t i = 0; i < end; ++i) {
    const auto byte = static_cast<std::uint8_t>(piece[i]);
    links[i] = {byte_ids_[byte], no_rank, i - 1, i + 1};
    if (i + 1 < end)
      links[i].rank =
          byte_ranks_[std::size_t{byte} * 256 + static_cast<std::uint8_t>(piece[i + 1])];
    if (links[i].rank != no_rank)
      first.push_back({links[i].rank, i});
  }
  std::priority_queue<entry, std::vector<entry>, std::greater<>> heap{std::greater<>{},
                                                                      std::move(first)};
  const auto pair_at = [&](std::size_t place) {
    link& l = links[place];
    l.rank = l.after < end ? rank_of(l.symbol, links[l.after].symbol) : no_rank;
    if (l.rank != no_rank)
      heap.push({l.rank, place});
  };
  while (!heap.empty()) {
    const auto [rank, place] = heap.top();
    heap.pop();
    link& l = links[place];
    if (l.rank != rank)
      continue;
    const std::size_t gone = l.after;
    l.symbol = results_[rank];
    l.after = links[gone].after;
    links[gone].rank = no_rank;
    if (l.after < end)
      links[l.after].before = place;
    pair_at(place);
    if (place != 0)
      pair_at(l.before);
  }
  for (std::size_t i = 0; i < end; i = links[i].after)
    out.push_back(links[i].symbol);
}

} // namespace di::engine
