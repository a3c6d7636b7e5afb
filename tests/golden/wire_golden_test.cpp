// SPDX-License-Identifier: Apache-2.0
// Goal: the bytes of each built-in message stay what they are, as processes of different builds
// meet during an upgrade. Method: one sample per message from its name, compared with
// data/wire/<message>.hex. A meant change: run this program with DI_WRITE_GOLDEN=1 and read the
// diff.
#include "messaging/proto/catalog.hpp"
#include "messaging/wire/codec.hpp"
#include "tests/support/sample_message.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

namespace di::test {
namespace {

const std::string folder = DI_SOURCE_DIR "/tests/golden/data/wire/";

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i != 0 && i % 48 == 0)
      out += "\n ";
    out += fmt::format("{:02x}", static_cast<unsigned>(bytes[i]));
  }
  return out + "\n";
}

const wire::codec_table& codecs() {
  static const wire::codec_table table = wire::builtin_codecs();
  return table;
}

template <class M>
std::string bytes_as_text() {
  test::sampler from{test::seed_of(M::message_name())};
  const wire::encoded out = codecs().encode(parcel::of(test::sample_message<M>(from))).value();
  std::string text = fmt::format("wire {:#06x}\nbody {}", wire_id{M::wire}.v, hex(out.body));
  for (const shared_bytes& a : out.attachments)
    text += "attachment " + hex(a.bytes());
  return text;
}

template <class M>
void check(std::set<std::string>& names) {
  const std::string name{M::message_name()};
  names.insert(name + ".hex");
  const std::string now = bytes_as_text<M>();
  if (std::getenv("DI_WRITE_GOLDEN") != nullptr)
    std::ofstream{folder + name + ".hex"} << now;
  std::ifstream in{folder + name + ".hex"};
  const std::string before{std::istreambuf_iterator<char>{in}, {}};
  EXPECT_EQ(before, now) << name
                         << ": wire bytes differ; if that is meant, run with DI_WRITE_GOLDEN=1";
}

template <class... Ms>
void check_all(type_list<Ms...>) {
  std::set<std::string> names;
  (check<Ms>(names), ...);
  for (const auto& file : std::filesystem::directory_iterator(folder))
    EXPECT_TRUE(names.contains(file.path().filename().string()))
        << file.path() << " belongs to no message";
}

TEST(wire_golden, keeps_the_bytes_of_every_message) {
  check_all(proto::catalog{});
}

} // namespace
} // namespace di::test
