// SPDX-License-Identifier: Apache-2.0
// Goal: a frame comes back as it was, and no flipped, cut or grown frame passes.
#include "messaging/base/crc32c.hpp"
#include "messaging/base/limits.hpp"
#include "messaging/wire/frame.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace di::test {
namespace {

std::vector<std::byte> body_of(std::string_view text) {
  std::vector<std::byte> out(text.size());
  std::memcpy(out.data(), text.data(), text.size());
  return out;
}

wire::frame_label label() {
  wire::frame_label l;
  l.kind = mail_kind::request;
  l.id = wire_id{0x0203};
  l.view = epoch{7};
  l.sender = incarnation{0x1111222233334444};
  l.receiver = incarnation{0x5555};
  l.sequence = 12;
  l.request = 99;
  l.remaining = std::chrono::milliseconds{250};
  l.to = "/rank/3/rank";
  l.from = "/control/scheduler";
  return l;
}

std::vector<std::byte> frame_with(std::span<const shared_bytes> attachments = {}) {
  return wire::make_frame(label(), body_of("body"), attachments).value();
}

TEST(crc32c, has_the_known_check_value_on_both_paths) {
  const auto text = body_of("123456789");
  EXPECT_EQ(crc32c(text), 0xe3069283u);
  EXPECT_EQ(di::detail::crc32c_portable(text, 0), 0xe3069283u);
  EXPECT_EQ(crc32c(std::span{text}.subspan(4), crc32c(std::span{text}.first(4))), 0xe3069283u);
}

TEST(crc32c, gives_the_same_by_instruction_and_by_table) {
  std::vector<std::byte> bytes(300);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 37 + 11);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    ASSERT_EQ(crc32c(std::span{bytes}.first(n), 5),
              di::detail::crc32c_portable(std::span{bytes}.first(n), 5));
}

TEST(frame, brings_label_body_and_sizes_back) {
  const std::vector<shared_bytes> attachments{shared_bytes::adopt(std::string("abc")),
                                              shared_bytes{}};
  const auto bytes = frame_with(attachments);
  const auto got = wire::read_frame(bytes);
  ASSERT_TRUE(got.ok()) << got.error().render();
  const wire::frame_label l = label();
  EXPECT_EQ(got->label.kind, l.kind);
  EXPECT_EQ(got->label.id, l.id);
  EXPECT_EQ(got->label.view, l.view);
  EXPECT_EQ(got->label.sender, l.sender);
  EXPECT_EQ(got->label.receiver, l.receiver);
  EXPECT_EQ(got->label.sequence, l.sequence);
  EXPECT_EQ(got->label.request, l.request);
  EXPECT_EQ(got->label.remaining, l.remaining);
  EXPECT_EQ(got->label.to, l.to);
  EXPECT_EQ(got->label.from, l.from);
  EXPECT_EQ(got->attachment_sizes, (std::vector<std::uint64_t>{3, 0}));
  EXPECT_TRUE(std::ranges::equal(got->body, body_of("body")));
}

TEST(frame, names_the_slot_in_which_attachments_lie) {
  const std::vector<shared_bytes> attachments{shared_bytes::adopt(std::string("abc")),
                                              shared_bytes{}};
  const wire::segment_slot slot{4096, 192, 0x123456789abcdef0};
  auto bytes = wire::make_frame(label(), body_of("body"), attachments, &slot).value();
  const auto got = wire::read_frame(bytes);
  ASSERT_TRUE(got.ok()) << got.error().render();
  EXPECT_EQ(got->slot, slot);
  EXPECT_EQ(got->attachment_sizes, (std::vector<std::uint64_t>{3, 0}));
  EXPECT_TRUE(std::ranges::equal(got->body, body_of("body")));
  EXPECT_FALSE(wire::read_frame(frame_with(attachments))->slot.has_value());
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(wire::read_frame(bytes).ok()) << "byte " << i << " bit " << bit;
      bytes[i] ^= static_cast<std::byte>(1 << bit);
    }
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(wire::read_frame(std::span{bytes}.first(n)).ok()) << n;
}

TEST(frame, refuses_a_slot_without_attachments_and_sizes_past_the_limit) {
  const wire::segment_slot slot{0, 64, 1};
  const auto none = wire::make_frame(label(), body_of("body"), {}, &slot).value();
  EXPECT_EQ(wire::read_frame(none).error().code, ec::bad_format);
  const std::byte one{};
  const std::vector<shared_bytes> huge{{nullptr, &one, limits::attachment_bytes_max + 1}};
  const auto large = wire::make_frame(label(), body_of("body"), huge, &slot).value();
  EXPECT_EQ(wire::read_frame(large).error().code, ec::bad_format);
}

TEST(frame, takes_its_sequence_later) {
  auto bytes = frame_with();
  wire::set_sequence(bytes, 77);
  EXPECT_EQ(wire::read_frame(bytes)->label.sequence, 77u);
}

TEST(frame, refuses_every_single_flipped_bit) {
  const std::vector<shared_bytes> attachments{shared_bytes::adopt(std::string("abc"))};
  auto bytes = frame_with(attachments);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(wire::read_frame(bytes).ok()) << "byte " << i << " bit " << bit;
      bytes[i] ^= static_cast<std::byte>(1 << bit);
    }
  EXPECT_TRUE(wire::read_frame(bytes).ok());
}

TEST(frame, refuses_every_cut_and_every_tail) {
  auto bytes = frame_with();
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(wire::read_frame(std::span{bytes}.first(n)).ok()) << n;
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(wire::read_frame(bytes).ok());
}

TEST(frame, refuses_to_make_what_is_past_the_limits) {
  wire::frame_label l = label();
  const std::string path(limits::address_bytes_max + 1, 'x');
  l.to = path;
  EXPECT_EQ(wire::make_frame(l, {}, {}).error().code, ec::limit_exceeded);
  const std::vector<shared_bytes> many(limits::attachments_max + 1);
  EXPECT_EQ(wire::make_frame(label(), {}, many).error().code, ec::limit_exceeded);
}

TEST(batch, brings_its_items_back_in_order) {
  const auto a = frame_with();
  auto b = frame_with();
  wire::set_sequence(b, 13);
  const std::vector<std::span<const std::byte>> items{a, b, a};
  std::vector<std::byte> out(wire::batch_bytes(3, 3 * a.size()));
  wire::write_batch(out, incarnation{1}, incarnation{2}, 5, items);
  ASSERT_TRUE(wire::is_batch(out));
  EXPECT_FALSE(wire::is_batch(a));
  EXPECT_FALSE(wire::read_frame(out).ok());
  const auto got = wire::read_batch(out);
  ASSERT_TRUE(got.ok()) << got.error().render();
  EXPECT_EQ(got->sender, incarnation{1});
  EXPECT_EQ(got->receiver, incarnation{2});
  EXPECT_EQ(got->sequence, 5u);
  ASSERT_EQ(got->items.size(), 3u);
  EXPECT_EQ(wire::read_frame(got->items[1])->label.sequence, 13u);
}

TEST(batch, lets_no_flipped_bit_through_header_and_items) {
  const auto a = frame_with();
  const std::vector<std::span<const std::byte>> items{a, a};
  std::vector<std::byte> out(wire::batch_bytes(2, 2 * a.size()));
  wire::write_batch(out, incarnation{1}, incarnation{2}, 5, items);
  for (std::size_t i = 0; i < out.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      out[i] ^= static_cast<std::byte>(1 << bit);
      const auto got = wire::read_batch(out);
      bool all_items_pass = got.ok() && got->items.size() == 2;
      if (got)
        for (const auto item : got->items)
          all_items_pass = all_items_pass && wire::read_frame(item).ok();
      EXPECT_FALSE(all_items_pass) << "byte " << i << " bit " << bit;
      out[i] ^= static_cast<std::byte>(1 << bit);
    }
}

} // namespace
} // namespace di::test
