// SPDX-License-Identifier: Apache-2.0
// Framing of journal records.
#include "engine/core/journal_log.hpp"

#include "engine/core/journal_codec.hpp"
#include "messaging/base/crc32c.hpp"

#include <algorithm>

namespace di::engine {
namespace {

constexpr std::size_t checked_from = 8; ///< the checksum covers all behind it

template <class Int>
void put_le(std::byte* to, Int v) {
  for (std::size_t i = 0; i < sizeof(Int); ++i)
    to[i] = static_cast<std::byte>(v >> (8 * i));
}

template <class Int>
Int get_le(std::span<const std::byte> from) {
  Int v = 0;
  for (std::size_t i = 0; i < sizeof(Int); ++i)
    v = static_cast<Int>(v | (static_cast<Int>(from[i]) << (8 * i)));
  return v;
}

struct frame_head {
  std::uint32_t length = 0, checksum = 0;
  std::uint64_t number = 0, elapsed_ms = 0;
  std::uint8_t kind = 0;
};

frame_head head_of(std::span<const std::byte> at) {
  return {get_le<std::uint32_t>(at), get_le<std::uint32_t>(at.subspan(4)),
          get_le<std::uint64_t>(at.subspan(8)), get_le<std::uint64_t>(at.subspan(16)),
          static_cast<std::uint8_t>(at[24])};
}

bool intact(const frame_head& h, std::span<const std::byte> at) {
  return crc32c(at.subspan(checked_from, frame_head_bytes - checked_from + h.length)) == h.checksum;
}

template <std::size_t Kind = 0>
result<any_record> decode_body(std::size_t kind, std::span<const std::byte> body) {
  if constexpr (Kind == std::variant_size_v<any_record>) {
    return fail(ec::corrupt, "{} is no kind of record that this build knows", kind + 1);
  } else {
    if (kind != Kind)
      return decode_body<Kind + 1>(kind, body);
    std::variant_alternative_t<Kind, any_record> one;
    codec::decoder in{body};
    DI_TRY_VOID(in.get(one));
    DI_TRY_VOID(in.finish());
    return any_record{std::move(one)};
  }
}

} // namespace

bool append_frame(std::vector<std::byte>& log, const framed_record& record) {
  const std::size_t begin = log.size();
  log.resize(begin + frame_head_bytes);
  codec::encoder out{log};
  std::visit([&out](const auto& body) { out.put(body); }, record.body);
  const std::size_t length = log.size() - begin - frame_head_bytes;
  if (length > record_bytes_max) {
    log.resize(begin);
    return false;
  }
  std::byte* head = log.data() + begin;
  put_le(head, static_cast<std::uint32_t>(length));
  put_le(head + 8, record.number);
  put_le(head + 16, record.elapsed_ms);
  head[24] = static_cast<std::byte>(record.body.index() + 1);
  put_le(head + 4, crc32c(std::span{log}.subspan(begin + checked_from)));
  return true;
}

result<std::optional<framed_record>> log_reader::next() {
  if (stopped_ || at_ == log_.size())
    return std::optional<framed_record>{};
  const auto rest = log_.subspan(at_);
  if (rest.size() < frame_head_bytes)
    return stop(fmt::format("{} of the {} bytes of a frame's head", rest.size(), frame_head_bytes));
  const frame_head head = head_of(rest);
  if (head.length > record_bytes_max)
    return stop(fmt::format("a record of {} bytes, at most {}", head.length, record_bytes_max));
  if (rest.size() - frame_head_bytes < head.length)
    return stop(
        fmt::format("{} of the {} bytes of a record", rest.size() - frame_head_bytes, head.length));
  if (!intact(head, rest))
    return stop("the checksum does not match");
  if (number_ != 0 && head.number != number_ + 1)
    return fail(ec::corrupt, "{}: offset {}: record {} follows record {}", name_, at_, head.number,
                number_);
  if (head.number == 0 || head.elapsed_ms < elapsed_ms_)
    return fail(ec::corrupt, "{}: offset {}: record {} at {} ms follows {} ms", name_, at_,
                head.number, head.elapsed_ms, elapsed_ms_);
  auto body = decode_body(std::size_t{head.kind} - 1, rest.subspan(frame_head_bytes, head.length));
  if (!body)
    return fail(ec::corrupt, "{}: offset {}: record {} of kind {}: {}", name_, at_, head.number,
                head.kind, body.error().what);
  number_ = head.number;
  elapsed_ms_ = head.elapsed_ms;
  at_ += frame_head_bytes + head.length;
  return std::optional{framed_record{head.number, head.elapsed_ms, std::move(body).value()}};
}

/// A write that was cut off leaves nothing behind the damage; whole records there mean that the
/// damage came later, and what it hit cannot be known.
result<std::optional<framed_record>> log_reader::stop(std::string why) {
  if (const auto behind = whole_frame_behind(at_ + 1))
    return fail(ec::corrupt, "{}: offset {}: {}, and whole records from offset {} on", name_, at_,
                why, *behind);
  stopped_ = true;
  ended_ = log_end::torn;
  why_ = fmt::format("{}: offset {}: {}; {} bytes dropped", name_, at_, why, log_.size() - at_);
  return std::optional<framed_record>{};
}

std::optional<std::size_t> log_reader::whole_frame_behind(std::size_t from) const {
  constexpr std::uint64_t ahead_max = 1U << 24U;
  for (std::size_t at = from; at + frame_head_bytes <= log_.size(); ++at) {
    const auto rest = log_.subspan(at);
    const frame_head h = head_of(rest);
    if (h.number > number_ && (number_ == 0 || h.number - number_ <= ahead_max) && h.kind >= 1
        && h.kind <= std::variant_size_v<any_record> && h.elapsed_ms >= elapsed_ms_
        && h.length <= rest.size() - frame_head_bytes && intact(h, rest))
      return at;
  }
  return std::nullopt;
}

} // namespace di::engine
