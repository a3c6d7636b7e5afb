// SPDX-License-Identifier: Apache-2.0
// Frames, batches and bodies of every built-in message. The first byte of an input says how the
// rest is taken: 0 as it comes, 1 as a frame whose checksum is made right first, 2 as a batch of
// such frames, 3 as wire id (2 bytes) and body.
#include "messaging/wire/codec.hpp"
#include "messaging/wire/frame.hpp"
#include "tests/support/fuzz_driver.hpp"

namespace di {
namespace {

using di::testing::fuzz_signature;

const wire::codec_table& codecs() {
  static const wire::codec_table table = wire::builtin_codecs();
  return table;
}

std::uint64_t take_body(wire_id id, std::span<const std::byte> body,
                        std::span<shared_bytes> attachments) {
  auto got = codecs().decode(id, body, attachments);
  if (!got)
    return fuzz_signature(got.error().what);
  // What passed must be printable and encode again.
  const std::string text = codecs().print(*got);
  const auto again = codecs().encode(*got);
  if (!again || text.empty())
    std::abort();
  std::vector<shared_bytes> rows = again->attachments;
  if (!codecs().decode(id, again->body, rows))
    std::abort();
  return fuzz_signature(std::string{got->name()} + std::to_string(again->body.size() / 8));
}

std::uint64_t take_frame(std::span<const std::byte> bytes) {
  const auto frame = wire::read_frame(bytes);
  if (!frame)
    return fuzz_signature(frame.error().what);
  // The bus refuses attachments of other sizes than the header's; here they are all small.
  static const std::string content(64, 'r');
  std::vector<shared_bytes> attachments;
  for (const std::uint64_t size : frame->attachment_sizes)
    attachments.emplace_back(nullptr, content.data(), std::min<std::size_t>(size, content.size()));
  return take_body(frame->label.id, frame->body, attachments);
}

std::uint64_t take(std::span<const std::byte> in) {
  if (in.size() < 4)
    return 0;
  std::vector<std::byte> rest{in.begin() + 1, in.end()};
  switch (static_cast<unsigned>(in[0]) % 4) {
  case 0:
    break;
  case 1:
    if (rest.size() >= wire::header_bytes)
      wire::set_sequence(rest, 1);
    break;
  case 2: {
    std::vector<std::span<const std::byte>> items;
    for (std::size_t at = 0; at < rest.size() && items.size() < 16;) {
      const std::size_t size = std::min<std::size_t>(rest.size() - at, 120);
      if (size >= wire::header_bytes)
        wire::set_sequence(std::span{rest}.subspan(at, size), 1);
      items.emplace_back(std::span{rest}.subspan(at, size));
      at += size;
    }
    std::size_t sum = 0;
    for (const auto item : items)
      sum += item.size();
    std::vector<std::byte> batch(wire::batch_bytes(items.size(), sum));
    wire::write_batch(batch, incarnation{1}, incarnation{2}, 3, items);
    rest = std::move(batch);
    break;
  }
  default:
    return take_body(wire_id{static_cast<std::uint16_t>(static_cast<unsigned>(rest[0]) << 8
                                                        | static_cast<unsigned>(rest[1]))},
                     std::span{rest}.subspan(2), {});
  }
  if (!wire::is_batch(rest))
    return take_frame(rest);
  const auto batch = wire::read_batch(rest);
  if (!batch)
    return fuzz_signature(batch.error().what);
  std::uint64_t signature = batch->items.size();
  for (const auto item : batch->items)
    signature = signature * 31 + take_frame(item);
  return signature;
}

} // namespace
} // namespace di

DI_FUZZ_MAIN("wire_decoder", di::take)
