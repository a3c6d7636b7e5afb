// SPDX-License-Identifier: Apache-2.0
// The writing side of shared memory: puts the attachments of a mail into a slot of this process's
// segment. Never waits: without room the mail travels in frames.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"
#include "messaging/bus/segment.hpp"
#include "messaging/bus/slot_book.hpp"
#include "messaging/proto/message.hpp"
#include "messaging/wire/frame.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <span>

namespace di::bus {

class send_segment;

/// A slot between its reservation and the moment when its mail has left. Frees the slot if that
/// moment never comes.
class slot_lease {
public:
  slot_lease() = default;
  slot_lease(std::shared_ptr<send_segment> in, const wire::segment_slot& slot, incarnation reader)
      : in_{std::move(in)}, slot_{slot}, reader_{reader} {}
  slot_lease(slot_lease&&) noexcept = default;
  slot_lease& operator=(slot_lease&& other) noexcept {
    std::swap(in_, other.in_);
    std::swap(slot_, other.slot_);
    std::swap(reader_, other.reader_);
    return *this;
  }
  ~slot_lease();

  explicit operator bool() const noexcept { return in_ != nullptr; }
  const wire::segment_slot& slot() const noexcept { return slot_; }
  /// Copies the attachments and publishes the slot. @pre they have the sizes of the reservation
  void write(std::span<const shared_bytes> attachments);
  /// The mail has left: only the reader's release, or its certified death, frees the slot now.
  void sent() noexcept { in_.reset(); }

private:
  std::shared_ptr<send_segment> in_;
  wire::segment_slot slot_{};
  incarnation reader_{};
};

/// Thread-safe.
class send_segment : public std::enable_shared_from_this<send_segment> {
public:
  /// Maps and seals; the descriptor may be closed afterwards. @errors those of for_writer
  static result<std::shared_ptr<send_segment>> open(int fd);

  /// Room for attachments of these sizes, or none.
  std::optional<slot_lease> reserve(std::span<const std::uint64_t> sizes, incarnation reader);
  /// A reader gives a slot back. False: it does not hold it.
  bool release(incarnation reader, std::uint64_t offset, std::uint64_t generation);
  /// Frees what a reader held that is certainly dead.
  std::size_t free_reader(incarnation reader);
  std::size_t slots() const;
  std::uint64_t taken_bytes() const;
  std::uint64_t size() const noexcept { return map_.size(); }
  /// @errors internal: the book of slots contradicts itself
  result<void> check() const;

private:
  friend class slot_lease;
  explicit send_segment(segment_map map);

  segment_map map_;
  mutable std::mutex guard_;
  slot_book book_;
};

} // namespace di::bus
