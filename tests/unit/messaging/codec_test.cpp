// SPDX-License-Identifier: Apache-2.0
// Goal: every kind of field survives the way to bytes and back, and nothing else gets in. Method:
// one message with all kinds of fields, hand-made bytes for the refusals, msgpack-c as the judge of
// what is msgpack.
#include "messaging/proto/bus.hpp"
#include "messaging/wire/codec.hpp"

#include <gtest/gtest.h>
#include <msgpack.hpp>

#include <bit>
#include <cmath>
#include <cstring>

namespace di::test {
namespace {

enum class colour : std::uint8_t { red, green, blue = 5 };

struct inner {
  std::int32_t a = 7;
  std::string b = "x";
  DI_FIELDS(inner, m.a, m.b)
  friend bool operator==(const inner&, const inner&) = default;
};

struct all_kinds {
  static constexpr wire_id wire{0x8101};
  static constexpr std::string_view doc = "Fact: a test runs.";
  bool flag = false;
  std::uint8_t small = 0;
  std::int64_t wide = 0;
  float f = 0;
  double d = 0;
  std::string text;
  colour tint = colour::red;
  rank_id rank{};
  epoch when{};
  std::optional<std::int32_t> maybe;
  std::vector<token_id> tokens;
  std::vector<inner> parts;
  std::map<std::string, std::uint64_t> counts;
  shared_bytes rows;
  duration wait{};
  std::array<float, 2> pair{};
  shared_bytes scales;
  DI_FIELDS(all_kinds, m.flag, m.small, m.wide, m.f, m.d, m.text, m.tint, m.rank, m.when, m.maybe,
            m.tokens, m.parts, m.counts, m.rows, m.wait, m.pair, m.scales)
  friend bool operator==(const all_kinds&, const all_kinds&) = default;
};

struct one_int {
  static constexpr wire_id wire{0x8102};
  std::uint16_t v = 3;
  DI_FIELDS(one_int, m.v)
};
struct two_ints {
  static constexpr wire_id wire{0x8102};
  std::uint16_t v = 3;
  std::int32_t w = -9;
  DI_FIELDS(two_ints, m.v, m.w)
};
struct no_fields {
  static constexpr wire_id wire{0x8103};
  DI_FIELDS(no_fields)
};
struct floats {
  static constexpr wire_id wire{0x8104};
  float f = 0;
  double d = 0;
  DI_FIELDS(floats, m.f, m.d)
};
struct fat {
  std::array<double, 64> room{};
  std::vector<fat> more;
  DI_FIELDS(fat, m.more)
};
struct fat_list {
  static constexpr wire_id wire{0x8105};
  std::vector<fat> items;
  DI_FIELDS(fat_list, m.items)
};
struct blobs {
  static constexpr wire_id wire{0x8106};
  std::vector<shared_bytes> parts;
  std::int32_t after = 0;
  DI_FIELDS(blobs, m.parts, m.after)
};

all_kinds sample() {
  all_kinds m;
  m.flag = true;
  m.small = 255;
  m.wide = INT64_MIN;
  m.f = 1.5f;
  m.d = -0.1;
  m.text = "k\xc3\xa4se\n";
  m.tint = colour::blue;
  m.rank = rank_id{17};
  m.when = epoch{UINT64_MAX};
  m.maybe = -1;
  m.tokens = {0, 127, 128, -1, -33, INT32_MAX, INT32_MIN};
  m.parts = {{}, {1, ""}};
  m.counts = {{"", 0}, {"a", 1}, {"b", UINT64_MAX}};
  m.rows = shared_bytes::adopt(std::vector<std::uint8_t>{1, 2, 3});
  m.wait = std::chrono::seconds{5};
  m.pair = {0.25f, -0.0f};
  return m;
}

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> out;
  for (const int v : values)
    out.push_back(static_cast<std::byte>(v));
  return out;
}

template <class M>
ec refused(const std::vector<std::byte>& body) {
  const auto got = wire::decode<M>(body);
  return got ? ec::ok : got.error().code;
}

TEST(codec, brings_every_kind_of_field_back) {
  const all_kinds m = sample();
  wire::encoded out = wire::encode(m);
  ASSERT_EQ(out.attachments.size(), 2u);
  const auto back = wire::decode<all_kinds>(out.body, out.attachments);
  ASSERT_TRUE(back.ok()) << back.error().render();
  EXPECT_EQ(*back, m);
}

TEST(codec, hands_attachments_over_as_pointers) {
  const all_kinds m = sample();
  wire::encoded out = wire::encode(m);
  EXPECT_EQ(out.attachments[0].data(), m.rows.data());
  const auto back = wire::decode<all_kinds>(out.body, out.attachments);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->rows.data(), m.rows.data());
}

TEST(codec, writes_what_msgpack_c_reads) {
  const wire::encoded out = wire::encode(sample());
  const auto handle =
      msgpack::unpack(reinterpret_cast<const char*>(out.body.data()), out.body.size());
  const msgpack::object o = handle.get();
  ASSERT_EQ(o.type, msgpack::type::ARRAY);
  ASSERT_EQ(o.via.array.size, 15u);
  EXPECT_EQ(o.via.array.ptr[2].as<std::int64_t>(), INT64_MIN);
  EXPECT_EQ(o.via.array.ptr[3].as<float>(), 1.5f);
  EXPECT_EQ(o.via.array.ptr[10].as<std::vector<int>>(), sample().tokens);
  EXPECT_EQ((o.via.array.ptr[12].as<std::map<std::string, std::uint64_t>>()), sample().counts);
}

TEST(codec, reads_integers_in_every_width_that_msgpack_c_packs) {
  for (const std::uint64_t v : {0ull, 127ull, 128ull, 255ull, 256ull, 65535ull}) {
    for (int width = 0; width < 8; ++width) {
      msgpack::sbuffer buffer;
      msgpack::packer<msgpack::sbuffer> p{buffer};
      p.pack_array(1);
      switch (width) {
      case 0:
        p.pack_uint64(v);
        break;
      case 1:
        p.pack_fix_uint16(static_cast<std::uint16_t>(v));
        break;
      case 2:
        p.pack_fix_uint32(static_cast<std::uint32_t>(v));
        break;
      case 3:
        p.pack_fix_uint64(v);
        break;
      default:
        p.pack_int64(static_cast<std::int64_t>(v));
        break;
      }
      const auto* data = reinterpret_cast<const std::byte*>(buffer.data());
      const auto got = wire::decode<one_int>({data, buffer.size()});
      ASSERT_TRUE(got.ok()) << got.error().render();
      EXPECT_EQ(got->v, v);
    }
  }
}

TEST(codec, keeps_float_bits_even_of_nans) {
  floats m;
  m.f = std::bit_cast<float>(0x7fa00001u);
  m.d = std::bit_cast<double>(0xfff4000000000003ull);
  const auto back = wire::decode<floats>(wire::encode(m).body);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::bit_cast<std::uint32_t>(back->f), 0x7fa00001u);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(back->d), 0xfff4000000000003ull);
}

TEST(codec, fills_fields_of_older_senders_with_defaults) {
  const auto back = wire::decode<two_ints>(bytes({0x91, 0x05}));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->v, 5);
  EXPECT_EQ(back->w, -9);
  EXPECT_TRUE(wire::decode<two_ints>(bytes({0x90})).ok());
}

TEST(codec, refuses_fields_that_it_does_not_know) {
  const auto got = wire::decode<one_int>(bytes({0x92, 0x05, 0x06}));
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, ec::bad_format);
  EXPECT_NE(got.error().what.find("one_int has 2 fields"), std::string::npos);
}

TEST(codec, refuses_other_types_than_the_field_has) {
  EXPECT_EQ(refused<one_int>(bytes({0x91, 0xc3})), ec::bad_format);      // bool
  EXPECT_EQ(refused<one_int>(bytes({0x91, 0xa1, 'x'})), ec::bad_format); // string
  EXPECT_EQ(refused<one_int>(bytes({0x91, 0xff})), ec::bad_format);      // -1
  EXPECT_EQ(refused<one_int>(bytes({0x91, 0xc0})), ec::bad_format);      // nil
  EXPECT_EQ(refused<one_int>(bytes({0x91, 0xca, 0, 0, 0, 0})), ec::bad_format);
  EXPECT_EQ(refused<one_int>(bytes({0x91, 0xce, 0, 1, 0, 0})), ec::bad_format); // 65536
  EXPECT_EQ(refused<one_int>(bytes({0x05})), ec::bad_format);                   // no array
  EXPECT_EQ(refused<floats>(bytes({0x91, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0})), ec::bad_format);
  EXPECT_EQ(refused<floats>(bytes({0x91, 0x01})), ec::bad_format);
}

TEST(codec, refuses_bytes_after_the_last_field_and_missing_ones) {
  EXPECT_EQ(refused<one_int>(bytes({0x91, 0x05, 0x00})), ec::bad_format);
  EXPECT_EQ(refused<one_int>(bytes({0x91, 0xcd, 0x05})), ec::bad_format);
  EXPECT_EQ(refused<one_int>({}), ec::bad_format);
  EXPECT_EQ(refused<no_fields>(bytes({0x90})), ec::ok);
}

TEST(codec, refuses_numbers_that_are_no_enumerator) {
  EXPECT_EQ(refused<proto::request_failed>(bytes({0x91, 0x00})), ec::ok);
  EXPECT_EQ(refused<proto::request_failed>(bytes({0x91, 0x3f})), ec::bad_format);
  EXPECT_EQ(refused<proto::request_failed>(bytes({0x91, 0xcc, 0xff})), ec::bad_format);
}

TEST(codec, refuses_map_keys_out_of_order) {
  all_kinds m = sample();
  wire::encoded out = wire::encode(m);
  // "a" and "b" stand one byte apart from their values: swap the keys.
  for (std::size_t i = 0; i + 1 < out.body.size(); ++i)
    if (out.body[i] == std::byte{0xa1} && out.body[i + 1] == std::byte{'a'})
      out.body[i + 1] = std::byte{'b'};
  EXPECT_FALSE(wire::decode<all_kinds>(out.body, out.attachments).ok());
}

TEST(codec, never_allocates_what_a_count_promises) {
  // 4 billion elements in a body of 6 bytes.
  EXPECT_EQ(refused<fat_list>(bytes({0x91, 0xdd, 0xff, 0xff, 0xff, 0xff})), ec::bad_format);
  // As many empty elements as there are bytes: 1 byte each here, sizeof(fat) in memory.
  std::vector<std::byte> body = bytes({0x91, 0xdd, 0x00, 0x40, 0x00, 0x00});
  body.resize(body.size() + (0x400000), std::byte{0x90});
  EXPECT_EQ(refused<fat_list>(body), ec::limit_exceeded);
}

TEST(codec, refuses_more_levels_than_the_limit) {
  std::vector<std::byte> body = bytes({0x91});
  for (int i = 0; i < 200; ++i) {
    body.push_back(std::byte{0x91});
    body.push_back(std::byte{0x91});
  }
  body.push_back(std::byte{0x90});
  EXPECT_EQ(refused<fat_list>(body), ec::limit_exceeded);
}

TEST(codec, carries_lists_of_attachments) {
  blobs m;
  for (int i = 0; i < 3; ++i)
    m.parts.push_back(shared_bytes::adopt(std::string(static_cast<std::size_t>(i), 'x')));
  m.after = 4;
  wire::encoded out = wire::encode(m);
  ASSERT_EQ(out.attachments.size(), 3u);
  std::vector<shared_bytes> attachments = out.attachments;
  const auto back = wire::decode<blobs>(out.body, attachments);
  ASSERT_TRUE(back.ok()) << back.error().render();
  EXPECT_EQ(back->parts, m.parts);
  EXPECT_EQ(back->after, 4);
  // One attachment fewer than the body counts, and one more than there is room for.
  attachments = {out.attachments[0], out.attachments[1]};
  EXPECT_FALSE(wire::decode<blobs>(out.body, attachments).ok());
  attachments = out.attachments;
  attachments.push_back(out.attachments[0]);
  EXPECT_FALSE(wire::decode<blobs>(out.body, attachments).ok());
}

TEST(codec, prints_names_and_cuts_long_values) {
  all_kinds m = sample();
  m.tokens.assign(40, 1);
  const std::string text = wire::to_text(m);
  EXPECT_NE(text.find("all_kinds{flag=true, small=255, "), std::string::npos) << text;
  EXPECT_NE(text.find("tint=blue"), std::string::npos) << text;
  EXPECT_NE(text.find("... 40 in all"), std::string::npos) << text;
  EXPECT_NE(text.find("rows=<3 bytes>"), std::string::npos) << text;
  EXPECT_NE(text.find("parts=[inner{a=7, b=\"x\"}"), std::string::npos) << text;
}

TEST(codec_table, finds_encodes_decodes_and_prints_by_wire_id) {
  wire::codec_table table = wire::builtin_codecs();
  ASSERT_TRUE(table.add<all_kinds>().ok());
  ASSERT_TRUE(table.add<all_kinds>().ok());
  const parcel p = parcel::of(sample());
  auto out = table.encode(p);
  ASSERT_TRUE(out.ok());
  const auto back = table.decode(p.id(), out->body, out->attachments);
  ASSERT_TRUE(back.ok());
  ASSERT_NE(back->as<all_kinds>(), nullptr);
  EXPECT_EQ(*back->as<all_kinds>(), sample());
  EXPECT_EQ(table.print(p), wire::to_text(sample()));
  EXPECT_TRUE(table.find(all_kinds::wire)->bulk);
  EXPECT_FALSE(table.find(proto::hello::wire)->bulk);
}

TEST(codec_table, refuses_a_second_owner_of_a_wire_id) {
  wire::codec_table table;
  ASSERT_TRUE(table.add<one_int>().ok());
  const auto second = table.add<two_ints>();
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ec::duplicate);
}

TEST(codec_table, names_unknown_wire_ids) {
  const wire::codec_table table;
  const auto out = table.encode(parcel::of(one_int{}));
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.error().code, ec::unknown_message);
  EXPECT_NE(out.error().what.find("0x8102"), std::string::npos);
  EXPECT_EQ(table.decode(wire_id{0x7fff}, {}, {}).error().code, ec::unknown_message);
}

} // namespace
} // namespace di::test
