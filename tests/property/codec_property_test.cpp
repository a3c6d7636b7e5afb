// SPDX-License-Identifier: Apache-2.0
// Goal: any value of any built-in message survives the wire, and no damaged frame or body does harm
// or passes as another. Method: random values per message from a printed seed (DI_SEED).
#include "messaging/proto/catalog.hpp"
#include "messaging/wire/codec.hpp"
#include "messaging/wire/frame.hpp"
#include "tests/support/sample_message.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace di::test {
namespace {

std::uint64_t seed() {
  const char* given = std::getenv("DI_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 0) : 20261129;
}

constexpr int cases = 300;

struct codec_property : ::testing::Test {
  wire::codec_table codecs = wire::builtin_codecs();
  test::sampler from{seed(), 5};
};

/// A random message, its type forgotten: the codecs of the table are the ones under test.
using make_fn = parcel (*)(test::sampler&);

template <class... Ms>
std::vector<make_fn> makers(type_list<Ms...>) {
  return {[](test::sampler& from) { return parcel::of(test::sample_message<Ms>(from)); }...};
}

void round_trip(const wire::codec_table& codecs, const parcel& p) {
  const wire::encoded out = codecs.encode(p).value();
  std::vector<shared_bytes> attachments = out.attachments;
  const auto back = codecs.decode(p.id(), out.body, attachments);
  ASSERT_TRUE(back.ok()) << back.error().render() << " seed " << seed();
  // Equal bytes mean equal fields: the encoding is injective, NaN bits included.
  const wire::encoded again = codecs.encode(*back).value();
  ASSERT_EQ(again.body, out.body) << p.name() << " seed " << seed();
  ASSERT_EQ(again.attachments, out.attachments) << p.name() << " seed " << seed();
  ASSERT_EQ(codecs.print(*back), codecs.print(p)) << "seed " << seed();
}

void refuse_cuts(const wire::codec_table& codecs, const parcel& p) {
  const wire::encoded out = codecs.encode(p).value();
  for (std::size_t n = 0; n < out.body.size(); ++n) {
    std::vector<shared_bytes> attachments = out.attachments;
    ASSERT_FALSE(codecs.decode(p.id(), std::span{out.body}.first(n), attachments).ok())
        << p.name() << " cut at " << n << " of " << out.body.size() << " seed " << seed();
  }
  std::vector<std::byte> longer = out.body;
  longer.push_back(std::byte{0});
  std::vector<shared_bytes> attachments = out.attachments;
  ASSERT_FALSE(codecs.decode(p.id(), longer, attachments).ok()) << p.name();
}

void survive_flips(const wire::codec_table& codecs, const parcel& p, test::sampler& from) {
  wire::encoded out = codecs.encode(p).value();
  wire::frame_label label;
  label.id = p.id();
  label.to = "/a";
  label.from = "/b";
  std::vector<std::byte> frame = wire::make_frame(label, out.body, out.attachments).value();
  const std::size_t at = from.below(frame.size());
  frame[at] ^= static_cast<std::byte>(1u << from.below(8));
  ASSERT_FALSE(wire::read_frame(frame).ok()) << p.name() << " byte " << at;
  // A body that no checksum protects: anything but harm, and what passes is a value like others.
  out.body[from.below(out.body.size())] ^= static_cast<std::byte>(1u << from.below(8));
  std::vector<shared_bytes> attachments = out.attachments;
  if (auto got = codecs.decode(p.id(), out.body, attachments)) {
    ASSERT_TRUE(codecs.encode(*got).ok()) << p.name();
  }
}

TEST_F(codec_property, brings_random_values_of_every_message_back) {
  for (const make_fn make : makers(proto::catalog{}))
    for (int i = 0; i < cases; ++i)
      ASSERT_NO_FATAL_FAILURE(round_trip(codecs, make(from)));
}

TEST_F(codec_property, refuses_cut_and_grown_bodies_of_every_message) {
  for (const make_fn make : makers(proto::catalog{}))
    for (int i = 0; i < 10; ++i)
      ASSERT_NO_FATAL_FAILURE(refuse_cuts(codecs, make(from)));
}

TEST_F(codec_property, refuses_flipped_frames_and_survives_flipped_bodies) {
  for (const make_fn make : makers(proto::catalog{}))
    for (int i = 0; i < cases; ++i)
      ASSERT_NO_FATAL_FAILURE(survive_flips(codecs, make(from), from));
}

} // namespace
} // namespace di::test
