// SPDX-License-Identifier: Apache-2.0
// The frame of one mail on a socket, and of a batch of them: a fixed little-endian header, then
// paths, attachment sizes and body. Attachments follow as raw frames of their own.
//
//   offset size  field
//        0    2  magic "di"
//        2    1  version, 1
//        3    1  kind: mail_kind 0..3, or 16 = batch
//        4    2  wire id (0 in a batch)
//        6    2  attachments; the highest bit: they lie in the sender's segment
//        8    8  view epoch of the sender
//       16    8  incarnation of the sending process
//       24    8  incarnation of the receiving process
//       32    8  sequence: 1, 2, ... per sender, receiver and socket class; a batch has one
//       40    8  request number, 0: none
//       48    8  remaining time until the deadline [ns], 0: none
//       56    2  bytes of the receiver's path
//       58    2  bytes of the sender's path
//       60    4  bytes of the body
//       64    4  reserved, 0
//       68    4  CRC-32C of everything but itself: header, paths, sizes, body
//       72    -  receiver's path, sender's path, attachment sizes (u64 each), slot (24 bytes), body
//
// The slot stands there only if the attachments lie in the segment: offset, bytes and generation
// (u64 each, messaging/bus/segment.hpp); no raw frames follow then.
//
// A batch has no paths and no raw frames; its body is a row of (u32 size, frame). Its own CRC
// covers only its header: every item has one of its own. Attachment bytes are not summed: unix
// sockets do not corrupt, and on tcp CURVE authenticates every byte.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/parcel.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace di::wire {

inline constexpr std::uint8_t frame_version = 1;
inline constexpr std::size_t header_bytes = 72;
inline constexpr std::uint8_t batch_kind = 16;

/// Label of one mail as it travels.
struct frame_label {
  mail_kind kind = mail_kind::tell;
  wire_id id;
  epoch view{};
  incarnation sender{};
  incarnation receiver{};
  std::uint64_t sequence = 0;
  std::uint64_t request = 0;
  duration remaining{};  ///< 0: no deadline
  std::string_view to;   ///< decoded: points into the frame
  std::string_view from; ///< decoded: points into the frame
};

/// A place in the send segment of the frame's sender.
struct segment_slot {
  std::uint64_t offset = 0; ///< [bytes]
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0; ///< of the content, never 0
  friend bool operator==(const segment_slot&, const segment_slot&) = default;
};

/// A checked frame; views point into the bytes that were given.
struct frame_view {
  frame_label label;
  std::span<const std::byte> body;
  std::vector<std::uint64_t> attachment_sizes; ///< [bytes] at most limits::attachments_max
  std::optional<segment_slot> slot;            ///< where the attachments lie; none: in raw frames
};

/// One frame with room for everything but the sequence, which set_sequence() fills in when the mail
/// is sent. With a slot, the attachments lie there and only their sizes are written.
/// @errors limit_exceeded: a path, the body or the attachments are too large
result<std::vector<std::byte>> make_frame(const frame_label& label, std::span<const std::byte> body,
                                          std::span<const shared_bytes> attachments,
                                          const segment_slot* slot = nullptr);

/// Writes sequence and checksum; the last step before a frame leaves.
void set_sequence(std::span<std::byte> frame, std::uint64_t sequence) noexcept;

/// Checks everything: magic, version, kind, sizes, checksum. @errors bad_format, corrupt
result<frame_view> read_frame(std::span<const std::byte> frame);

// --- batches ----------------------------------------------------------------------------------

/// True if the frame's header says batch; false for anything that is too short.
bool is_batch(std::span<const std::byte> frame) noexcept;

/// Bytes of a batch of frames with these sizes in sum.
constexpr std::size_t batch_bytes(std::size_t frames, std::size_t frame_bytes_sum) {
  return header_bytes + 4 * frames + frame_bytes_sum;
}

/// Writes a batch into `out`. @pre out.size() == batch_bytes(items.size(), sum of their sizes)
void write_batch(std::span<std::byte> out, incarnation sender, incarnation receiver,
                 std::uint64_t sequence,
                 std::span<const std::span<const std::byte>> items) noexcept;

/// Label of a batch: who sent it, to whom, sequence.
struct batch_view {
  incarnation sender{};
  incarnation receiver{};
  std::uint64_t sequence = 0;
  std::vector<std::span<const std::byte>> items; ///< frames, not yet checked
};

/// @errors bad_format, corrupt
result<batch_view> read_batch(std::span<const std::byte> frame);

} // namespace di::wire
