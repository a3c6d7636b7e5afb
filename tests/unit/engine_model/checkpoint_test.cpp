// SPDX-License-Identifier: Apache-2.0
#include "engine/model/checkpoint.hpp"
#include "engine/model/sha256.hpp"
#include "engine/model/tensor_table.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

const std::string demo = std::string{DI_SOURCE_DIR} + "/launch/models/demo";

TEST(sha256, gives_the_standard_digests) {
  EXPECT_EQ(sha256{}.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  sha256 abc;
  abc.update("abc");
  EXPECT_EQ(abc.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  sha256 million;
  const std::string piece(1000, 'a');
  for (int i = 0; i < 1000; ++i)
    million.update(piece);
  EXPECT_EQ(million.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(checkpoint, opens_the_demo_model) {
  const auto c = checkpoint::open(demo);
  ASSERT_TRUE(c.ok()) << c.error().render();
  EXPECT_EQ(c->tensors().size(), expected_tensors(c->spec()).size());
  EXPECT_EQ(c->find("no.such.tensor"), nullptr);
  const auto* embed = c->find("embed.weight");
  ASSERT_NE(embed, nullptr);
  EXPECT_EQ(embed->type, dtype::bfloat16);
  EXPECT_EQ(embed->shape, (tensor_shape{2048, 192}));
  EXPECT_EQ(c->engram_token_map().size(), 2048U);
  EXPECT_TRUE(c->notes().empty());
  EXPECT_EQ(c->hash().size(), 64U);
}

} // namespace
} // namespace di::engine
