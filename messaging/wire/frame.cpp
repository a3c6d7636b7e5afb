// SPDX-License-Identifier: Apache-2.0
#include "messaging/wire/frame.hpp"

#include "messaging/base/crc32c.hpp"
#include "messaging/base/limits.hpp"

#include <bit>
#include <cstring>

namespace di::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are copied as they lie");

constexpr std::uint16_t magic = 0x6964; // "di"
constexpr std::size_t at_version = 2, at_kind = 3, at_wire = 4, at_attachments = 6, at_view = 8,
                      at_sender = 16, at_receiver = 24, at_sequence = 32, at_request = 40,
                      at_remaining = 48, at_to = 56, at_from = 58, at_body = 60, at_reserved = 64,
                      at_crc = 68;
constexpr std::uint16_t in_segment = 0x8000;
constexpr std::size_t slot_bytes = 24;

template <class Int>
void put(std::byte* frame, std::size_t at, Int v) noexcept {
  std::memcpy(frame + at, &v, sizeof v);
}

template <class Int>
Int get(std::span<const std::byte> frame, std::size_t at) noexcept {
  Int v{};
  std::memcpy(&v, frame.data() + at, sizeof v);
  return v;
}

/// Checksum over `covered` bytes without the field of the checksum itself.
std::uint32_t checksum(std::span<const std::byte> frame, std::size_t covered) noexcept {
  const std::uint32_t head = crc32c(frame.first(at_crc));
  return crc32c(frame.subspan(header_bytes, covered - header_bytes), head);
}

result<void> check_head(std::span<const std::byte> frame) {
  if (frame.size() < header_bytes)
    return fail(ec::bad_format, "frame of {} bytes, a header has {}", frame.size(), header_bytes);
  if (get<std::uint16_t>(frame, 0) != magic)
    return fail(ec::bad_format, "frame begins with {:#06x}, expected {:#06x}",
                get<std::uint16_t>(frame, 0), magic);
  if (const auto version = get<std::uint8_t>(frame, at_version); version != frame_version)
    return fail(ec::bad_format, "frame version {}, this build speaks {}", version, frame_version);
  if (get<std::uint32_t>(frame, at_reserved) != 0)
    return fail(ec::bad_format, "reserved header bytes are not 0");
  return {};
}

} // namespace

result<std::vector<std::byte>> make_frame(const frame_label& label, std::span<const std::byte> body,
                                          std::span<const shared_bytes> attachments,
                                          const segment_slot* slot) {
  if (label.to.size() > limits::address_bytes_max || label.from.size() > limits::address_bytes_max)
    return fail(ec::limit_exceeded, "paths of {} and {} bytes, at most {} are allowed",
                label.to.size(), label.from.size(), limits::address_bytes_max);
  if (body.size() > limits::body_bytes_max)
    return fail(ec::limit_exceeded, "body of {} bytes, at most {} are allowed", body.size(),
                limits::body_bytes_max);
  if (attachments.size() > limits::attachments_max)
    return fail(ec::limit_exceeded, "{} attachments, at most {} are allowed", attachments.size(),
                limits::attachments_max);
  std::vector<std::byte> frame(header_bytes + label.to.size() + label.from.size()
                               + 8 * attachments.size() + (slot != nullptr ? slot_bytes : 0)
                               + body.size());
  std::byte* p = frame.data();
  put(p, 0, magic);
  put(p, at_version, frame_version);
  put(p, at_kind, static_cast<std::uint8_t>(label.kind));
  put(p, at_wire, label.id.v);
  put(p, at_attachments,
      static_cast<std::uint16_t>(attachments.size() | (slot != nullptr ? in_segment : 0)));
  put(p, at_view, label.view.v);
  put(p, at_sender, label.sender.v);
  put(p, at_receiver, label.receiver.v);
  put(p, at_request, label.request);
  put(p, at_remaining, static_cast<std::uint64_t>(label.remaining.count()));
  put(p, at_to, static_cast<std::uint16_t>(label.to.size()));
  put(p, at_from, static_cast<std::uint16_t>(label.from.size()));
  put(p, at_body, static_cast<std::uint32_t>(body.size()));
  std::size_t at = header_bytes;
  const auto append = [&](const void* from, std::size_t size) {
    if (size != 0)
      std::memcpy(p + at, from, size);
    at += size;
  };
  append(label.to.data(), label.to.size());
  append(label.from.data(), label.from.size());
  for (const shared_bytes& a : attachments) {
    const std::uint64_t size = a.size();
    append(&size, sizeof size);
  }
  if (slot != nullptr)
    for (const std::uint64_t v : {slot->offset, slot->bytes, slot->generation})
      append(&v, sizeof v);
  append(body.data(), body.size());
  set_sequence(frame, label.sequence);
  return frame;
}

void set_sequence(std::span<std::byte> frame, std::uint64_t sequence) noexcept {
  put(frame.data(), at_sequence, sequence);
  put(frame.data(), at_crc, checksum(frame, frame.size()));
}

result<frame_view> read_frame(std::span<const std::byte> frame) {
  DI_TRY_VOID(check_head(frame));
  const auto kind = get<std::uint8_t>(frame, at_kind);
  if (kind > static_cast<std::uint8_t>(mail_kind::failure))
    return fail(ec::bad_format, "mail kind {} is unknown", kind);
  const auto attachments_word = get<std::uint16_t>(frame, at_attachments);
  const bool shared = (attachments_word & in_segment) != 0;
  const std::size_t attachments = attachments_word & ~in_segment;
  const std::size_t to = get<std::uint16_t>(frame, at_to);
  const std::size_t from = get<std::uint16_t>(frame, at_from);
  const std::size_t body = get<std::uint32_t>(frame, at_body);
  if (attachments > limits::attachments_max || to > limits::address_bytes_max
      || from > limits::address_bytes_max || body > limits::body_bytes_max)
    return fail(ec::bad_format, "header names {} attachments, paths of {} and {}, body of {} bytes",
                attachments, to, from, body);
  if (shared && attachments == 0)
    return fail(ec::bad_format, "a slot without attachments");
  const std::size_t whole =
      header_bytes + to + from + 8 * attachments + (shared ? slot_bytes : 0) + body;
  if (frame.size() != whole)
    return fail(ec::corrupt, "frame of {} bytes, its header says {}", frame.size(), whole);
  if (const auto crc = get<std::uint32_t>(frame, at_crc); crc != checksum(frame, whole))
    return fail(ec::corrupt, "frame checksum {:08x}, content has {:08x}", crc,
                checksum(frame, whole));
  const auto remaining = get<std::uint64_t>(frame, at_remaining);
  if (remaining > static_cast<std::uint64_t>(limits::request_timeout_max.count()))
    return fail(ec::bad_format, "deadline in {} ns, at most {} are allowed", remaining,
                limits::request_timeout_max.count());

  frame_view out;
  const auto* text = reinterpret_cast<const char*>(frame.data()) + header_bytes;
  out.label = {static_cast<mail_kind>(kind),
               wire_id{get<std::uint16_t>(frame, at_wire)},
               epoch{get<std::uint64_t>(frame, at_view)},
               incarnation{get<std::uint64_t>(frame, at_sender)},
               incarnation{get<std::uint64_t>(frame, at_receiver)},
               get<std::uint64_t>(frame, at_sequence),
               get<std::uint64_t>(frame, at_request),
               duration{static_cast<std::int64_t>(remaining)},
               {text, to},
               {text + to, from}};
  out.attachment_sizes.reserve(attachments);
  for (std::size_t i = 0; i < attachments; ++i)
    out.attachment_sizes.push_back(get<std::uint64_t>(frame, header_bytes + to + from + 8 * i));
  if (shared) {
    const std::size_t at = header_bytes + to + from + 8 * attachments;
    out.slot = segment_slot{get<std::uint64_t>(frame, at), get<std::uint64_t>(frame, at + 8),
                            get<std::uint64_t>(frame, at + 16)};
    for (const std::uint64_t size : out.attachment_sizes)
      if (size > limits::attachment_bytes_max)
        return fail(ec::bad_format, "attachment of {} bytes, at most {} are allowed", size,
                    limits::attachment_bytes_max);
  }
  out.body = frame.last(body);
  return out;
}

// --- batches ----------------------------------------------------------------------------------

bool is_batch(std::span<const std::byte> frame) noexcept {
  return frame.size() >= header_bytes && get<std::uint8_t>(frame, at_kind) == batch_kind;
}

void write_batch(std::span<std::byte> out, incarnation sender, incarnation receiver,
                 std::uint64_t sequence,
                 std::span<const std::span<const std::byte>> items) noexcept {
  std::byte* p = out.data();
  std::memset(p, 0, header_bytes);
  put(p, 0, magic);
  put(p, at_version, frame_version);
  put(p, at_kind, batch_kind);
  put(p, at_sender, sender.v);
  put(p, at_receiver, receiver.v);
  put(p, at_sequence, sequence);
  put(p, at_body, static_cast<std::uint32_t>(out.size() - header_bytes));
  put(p, at_crc, checksum(out, header_bytes));
  std::size_t at = header_bytes;
  for (const auto item : items) {
    put(p, at, static_cast<std::uint32_t>(item.size()));
    std::memcpy(p + at + 4, item.data(), item.size());
    at += 4 + item.size();
  }
}

result<batch_view> read_batch(std::span<const std::byte> frame) {
  DI_TRY_VOID(check_head(frame));
  if (!is_batch(frame))
    return fail(ec::bad_format, "kind {} is no batch", get<std::uint8_t>(frame, at_kind));
  const std::size_t body = get<std::uint32_t>(frame, at_body);
  if (body != frame.size() - header_bytes || body > limits::batch_bytes_max)
    return fail(ec::corrupt, "batch of {} bytes, its header says {}", frame.size() - header_bytes,
                body);
  if (const auto crc = get<std::uint32_t>(frame, at_crc); crc != checksum(frame, header_bytes))
    return fail(ec::corrupt, "batch checksum {:08x} does not match", crc);
  batch_view out;
  out.sender = incarnation{get<std::uint64_t>(frame, at_sender)};
  out.receiver = incarnation{get<std::uint64_t>(frame, at_receiver)};
  out.sequence = get<std::uint64_t>(frame, at_sequence);
  std::size_t at = header_bytes;
  while (at < frame.size()) {
    if (frame.size() - at < 4)
      return fail(ec::corrupt, "batch ends inside an item's size");
    const std::size_t size = get<std::uint32_t>(frame, at);
    at += 4;
    if (size < header_bytes || size > frame.size() - at)
      return fail(ec::corrupt, "batch item of {} bytes, {} are left", size, frame.size() - at);
    out.items.push_back(frame.subspan(at, size));
    at += size;
  }
  return out;
}

} // namespace di::wire
