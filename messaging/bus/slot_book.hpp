// SPDX-License-Identifier: Apache-2.0
// Which bytes of a send segment are taken, and by whose reading. Pure bookkeeping in the writer's
// own memory: nothing in the segment is believed.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"
#include "messaging/wire/frame.hpp"

#include <cstdint>
#include <map>
#include <optional>

namespace di::bus {

/// Slots of one segment. Not thread-safe.
class slot_book {
public:
  /// Generations count up from `first_generation` and are never 0 nor used twice.
  slot_book(std::uint64_t bytes, std::size_t slots_max, std::uint64_t first_generation);

  /// The lowest free place for `bytes`, to be read by `reader`. None: no room, or slots_max are
  /// taken. @pre bytes is a multiple of slot_alignment, > 0
  std::optional<wire::segment_slot> take(std::uint64_t bytes, incarnation reader);
  /// False, and nothing changes: no such slot, or another reader's, or another generation.
  bool give_back(std::uint64_t offset, std::uint64_t generation, incarnation reader);
  /// Frees all slots of a reader that is certainly dead; calls `freed(offset)` for each.
  template <class F>
  std::size_t free_reader(incarnation reader, F&& freed) {
    std::size_t n = 0;
    for (auto at = taken_.begin(); at != taken_.end();) {
      if (at->second.reader != reader) {
        ++at;
        continue;
      }
      freed(at->first);
      release(at->first, at->second.bytes);
      at = taken_.erase(at);
      ++n;
    }
    return n;
  }

  std::size_t taken() const noexcept { return taken_.size(); }
  std::uint64_t taken_bytes() const noexcept { return taken_bytes_; }
  /// Every byte is free or in exactly one slot, and free ranges do not touch. @errors internal
  result<void> check() const;

private:
  struct entry {
    std::uint64_t bytes = 0, generation = 0;
    incarnation reader{};
  };
  void release(std::uint64_t offset, std::uint64_t bytes);

  std::uint64_t bytes_;
  std::size_t slots_max_;
  std::uint64_t next_generation_;
  std::uint64_t taken_bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> free_; ///< offset -> bytes
  std::map<std::uint64_t, entry> taken_;        ///< by offset
};

} // namespace di::bus
