// SPDX-License-Identifier: Apache-2.0
// Order of a slot's life: reserved (generation 0), written, published (generation g), read,
// released (generation 0 again).
#include "messaging/bus/send_segment.hpp"

#include "messaging/base/env.hpp"
#include "messaging/base/limits.hpp"
#include "messaging/base/probe.hpp"

#include <csignal>
#include <cstring>

namespace di::bus {

slot_lease::~slot_lease() {
  if (in_ != nullptr)
    in_->release(reader_, slot_.offset, slot_.generation);
}

void slot_lease::write(std::span<const shared_bytes> attachments) {
  const segment_map& map = in_->map_;
  std::uint64_t at = slot_.offset + slot_header_bytes;
  map.bytes_at(slot_.offset).store(slot_.bytes, std::memory_order_relaxed);
  for (const shared_bytes& a : attachments) {
    const std::size_t half = a.size() / 2;
    if (!a.empty())
      std::memcpy(map.at(at), a.data(), half);
    if (fault_point("segment.stop_in_write"))
      ::raise(SIGSTOP); // tests: what happens to others when a writer sleeps here
    if (!a.empty())
      std::memcpy(map.at(at + half), a.data() + half, a.size() - half);
    at += slot_aligned(a.size());
  }
  map.generation_at(slot_.offset).store(slot_.generation, std::memory_order_release);
}

send_segment::send_segment(segment_map map)
    : map_{std::move(map)},
      // Random, so that a descriptor of another segment does not fit by chance.
      book_{map_.size(), limits::segment_slots_max, real_env().random() >> 8} {
}

result<std::shared_ptr<send_segment>> send_segment::open(int fd) {
  DI_TRY(auto map, segment_map::for_writer(fd));
  return std::shared_ptr<send_segment>{new send_segment{std::move(map)}};
}

std::optional<slot_lease> send_segment::reserve(std::span<const std::uint64_t> sizes,
                                                incarnation reader) {
  const std::uint64_t bytes = slot_bytes_for(sizes);
  std::optional<wire::segment_slot> slot;
  {
    const std::lock_guard lock{guard_};
    slot = book_.take(bytes, reader);
  }
  if (!slot)
    return std::nullopt;
  map_.generation_at(slot->offset).store(0, std::memory_order_relaxed);
  return slot_lease{shared_from_this(), *slot, reader};
}

bool send_segment::release(incarnation reader, std::uint64_t offset, std::uint64_t generation) {
  const std::lock_guard lock{guard_};
  if (!book_.give_back(offset, generation, reader))
    return false;
  map_.generation_at(offset).store(0, std::memory_order_release);
  return true;
}

std::size_t send_segment::free_reader(incarnation reader) {
  const std::lock_guard lock{guard_};
  return book_.free_reader(reader, [this](std::uint64_t offset) {
    map_.generation_at(offset).store(0, std::memory_order_release);
  });
}

std::size_t send_segment::slots() const {
  const std::lock_guard lock{guard_};
  return book_.taken();
}

std::uint64_t send_segment::taken_bytes() const {
  const std::lock_guard lock{guard_};
  return book_.taken_bytes();
}

result<void> send_segment::check() const {
  const std::lock_guard lock{guard_};
  return book_.check();
}

} // namespace di::bus
