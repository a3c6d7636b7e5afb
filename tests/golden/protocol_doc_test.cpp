// SPDX-License-Identifier: Apache-2.0
// Goal: doc/protocol.md says what the program says. After a meant change run this program with
// DI_WRITE_GOLDEN=1.
#include "messaging/wire/protocol_doc.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace {

TEST(protocol_doc, equals_the_document_in_the_repository) {
  const std::string path = DI_SOURCE_DIR "/doc/protocol.md";
  const std::string now = di::wire::render_protocol();
  if (std::getenv("DI_WRITE_GOLDEN") != nullptr)
    std::ofstream{path} << now;
  std::ifstream in{path};
  const std::string before{std::istreambuf_iterator<char>{in}, {}};
  EXPECT_EQ(before, now) << "doc/protocol.md is not up to date; run with DI_WRITE_GOLDEN=1";
}

} // namespace
