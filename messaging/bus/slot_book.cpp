// SPDX-License-Identifier: Apache-2.0
// First fit from the low end: what is not needed is never touched, so it costs no memory.
#include "messaging/bus/slot_book.hpp"

namespace di::bus {

slot_book::slot_book(std::uint64_t bytes, std::size_t slots_max, std::uint64_t first_generation)
    : bytes_{bytes}, slots_max_{slots_max}, next_generation_{first_generation | 1} {
  free_.emplace(0, bytes);
}

std::optional<wire::segment_slot> slot_book::take(std::uint64_t bytes, incarnation reader) {
  if (taken_.size() >= slots_max_ || bytes > bytes_ - taken_bytes_)
    return std::nullopt;
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    if (at->second < bytes)
      continue;
    const std::uint64_t offset = at->first;
    const std::uint64_t rest = at->second - bytes;
    const auto next = free_.erase(at);
    if (rest != 0)
      free_.emplace_hint(next, offset + bytes, rest);
    const std::uint64_t generation = next_generation_;
    next_generation_ += 1 + (next_generation_ + 1 == 0); // never 0
    taken_.emplace(offset, entry{bytes, generation, reader});
    taken_bytes_ += bytes;
    return wire::segment_slot{offset, bytes, generation};
  }
  return std::nullopt;
}

bool slot_book::give_back(std::uint64_t offset, std::uint64_t generation, incarnation reader) {
  const auto at = taken_.find(offset);
  if (at == taken_.end() || at->second.generation != generation || at->second.reader != reader)
    return false;
  release(offset, at->second.bytes);
  taken_.erase(at);
  return true;
}

void slot_book::release(std::uint64_t offset, std::uint64_t bytes) {
  taken_bytes_ -= bytes;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace_hint(next, offset, bytes);
}

result<void> slot_book::check() const {
  std::uint64_t at = 0, in_slots = 0;
  bool free_before = false;
  auto f = free_.begin();
  auto t = taken_.begin();
  while (at < bytes_) {
    if (f != free_.end() && f->first == at) {
      if (free_before)
        return fail(ec::internal, "two free ranges touch at {}", at);
      free_before = true;
      at += f->second;
      ++f;
    } else if (t != taken_.end() && t->first == at) {
      free_before = false;
      at += t->second.bytes;
      in_slots += t->second.bytes;
      ++t;
    } else {
      return fail(ec::internal, "byte {} of {} is neither free nor taken", at, bytes_);
    }
  }
  if (at != bytes_ || f != free_.end() || t != taken_.end() || in_slots != taken_bytes_)
    return fail(ec::internal, "{} bytes are covered and {} taken, expected {} and {}", at, in_slots,
                bytes_, taken_bytes_);
  return {};
}

} // namespace di::bus
