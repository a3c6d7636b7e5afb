// SPDX-License-Identifier: Apache-2.0
// A send segment: memory that one life of one process writes and its neighbours on the host read.
// The node process makes it and hands a writable descriptor to its one writer, read-only ones to
// the others. The writer seals it against any further writable mapping; its size never changes.
//
// Rows lie in slots. A slot begins with a header and holds the attachments of one mail, each at the
// next multiple of 64 bytes:
//
//   offset size  field
//        0    8  generation of the content; 0 while it is written and after it was released
//        8    8  bytes of the slot with this header
//       64    -  first attachment, then the next ones
//
// Where slots lie is known to the writer alone (slot_book.hpp); readers are told by descriptors in
// ordinary frames and believe nothing: a descriptor is checked against the segment's size and the
// slot's header.
#pragma once

#include "messaging/base/result.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace di::bus {

inline constexpr std::uint64_t slot_alignment = 64;
inline constexpr std::uint64_t slot_header_bytes = 64;

constexpr std::uint64_t slot_aligned(std::uint64_t bytes) noexcept {
  return (bytes + slot_alignment - 1) & ~(slot_alignment - 1);
}

/// A descriptor with an owner.
class owned_fd {
public:
  owned_fd() = default;
  explicit owned_fd(int fd) noexcept : fd_{fd} {}
  owned_fd(owned_fd&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  owned_fd& operator=(owned_fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~owned_fd();
  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }

private:
  int fd_ = -1;
};

/// A fresh segment as the node process holds it; both close on exec.
struct segment_files {
  owned_fd writer; ///< for its one writer
  owned_fd reader; ///< read-only, for everybody else
};

/// Makes a segment of zeros. Memory is taken as it is written. @errors io_error, bad_argument: not
/// a multiple of 64 bytes, or outside limits::segment_bytes_{min,max}
result<segment_files> make_segment(const std::string& name, std::uint64_t bytes);

/// A segment in this process's address space.
class segment_map {
public:
  segment_map() = default;
  /// Maps for writing and forbids every other writable mapping for ever.
  /// @errors refused: it was sealed before, by another writer; io_error
  static result<segment_map> for_writer(int fd);
  /// @errors refused: its size may change; io_error
  static result<segment_map> for_reader(int fd);
  segment_map(segment_map&& other) noexcept
      : data_{std::exchange(other.data_, nullptr)}, size_{std::exchange(other.size_, 0)} {}
  segment_map& operator=(segment_map&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~segment_map();

  std::byte* at(std::uint64_t offset) const noexcept { return data_ + offset; }
  std::uint64_t size() const noexcept { return size_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /// The header's first word. @pre a header fits at `offset`, a multiple of 64
  std::atomic_ref<std::uint64_t> generation_at(std::uint64_t offset) const noexcept {
    return std::atomic_ref{*reinterpret_cast<std::uint64_t*>(data_ + offset)};
  }
  std::atomic_ref<std::uint64_t> bytes_at(std::uint64_t offset) const noexcept {
    return std::atomic_ref{*reinterpret_cast<std::uint64_t*>(data_ + offset + 8)};
  }

private:
  static result<segment_map> map(int fd, int protection);

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

/// Bytes of a slot for attachments of these sizes.
std::uint64_t slot_bytes_for(std::span<const std::uint64_t> sizes) noexcept;

} // namespace di::bus
