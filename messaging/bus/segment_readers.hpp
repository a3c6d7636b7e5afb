// SPDX-License-Identifier: Apache-2.0
// The reading side of shared memory: the segments of the neighbours, mapped when their first
// descriptor comes, and the slots that this process must give back.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"
#include "messaging/bus/segment.hpp"
#include "messaging/proto/bus.hpp"
#include "messaging/proto/message.hpp"
#include "messaging/wire/frame.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace di::bus {

/// Thread-safe. shared_bytes that fetch() made may outlive this object and may die on any thread.
class segment_readers {
public:
  /// Releases of one writer that are worth a message.
  struct releases {
    incarnation writer{};
    std::vector<proto::released_slot> slots;
  };

  /// `due` is called on any thread when take_due() has something; it must not block.
  /// `overwritten` counts slots whose generation changed while they were held here.
  segment_readers(std::function<void()> due, std::atomic<std::uint64_t>& overwritten);
  ~segment_readers();

  /// A neighbour's segment; takes the descriptor over.
  void add(incarnation writer, owned_fd fd);
  bool knows(incarnation writer) const;
  /// Attachments of a mail where they lie. They keep the slot until the last of them dies.
  /// @errors not_found: no segment of that life; corrupt: the slot is not inside the segment or has
  /// another size; stale_incarnation: another generation lies there; io_error, refused: the segment
  /// cannot be mapped
  result<void> fetch(incarnation writer, const wire::segment_slot& slot,
                     std::span<const std::uint64_t> sizes, std::vector<shared_bytes>& out);
  /// The writer is gone: nothing more is read from it, and what dies needs no release. Memory goes
  /// when the last attachment does.
  void forget(incarnation writer);
  /// Releases that are due: few messages, yet nobody holds much for long.
  std::vector<releases> take_due();

private:
  class source;
  struct hold;
  struct shared_state;

  std::shared_ptr<shared_state> state_;
  mutable std::mutex guard_;
  std::unordered_map<incarnation, std::shared_ptr<source>> sources_;
};

} // namespace di::bus
