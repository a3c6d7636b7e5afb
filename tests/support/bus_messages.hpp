// SPDX-License-Identifier: Apache-2.0
// Messages that tests of the bus send.
#pragma once

#include "messaging/wire/codec.hpp"

namespace di::test {

struct ping {
  static constexpr wire_id wire{0x8f01};
  static constexpr std::string_view doc = "Question: are you there?";
  std::uint64_t n = 0;
  std::string text;
  DI_FIELDS(ping, m.n, m.text)
};

struct rows {
  static constexpr wire_id wire{0x8f02};
  static constexpr std::string_view doc = "Fact: rows, without a copy.";
  std::uint64_t n = 0;
  shared_bytes data;
  DI_FIELDS(rows, m.n, m.data)
};

inline std::shared_ptr<const wire::codec_table> test_codecs() {
  static const auto table = [] {
    auto made = std::make_shared<wire::codec_table>(wire::builtin_codecs());
    const bool ok = made->add_all(type_list<ping, rows>{}).ok();
    DI_CHECK(ok);
    return std::shared_ptr<const wire::codec_table>{made};
  }();
  return table;
}

} // namespace di::test
