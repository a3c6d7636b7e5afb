// SPDX-License-Identifier: Apache-2.0
// The synthetic writer against published hashes, byte by byte.
#include "engine/model/checkpoint.hpp"
#include "engine/model/sha256.hpp"
#include "engine/model/synthetic.hpp"
#include "tests/support/temporary_directory.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace di::engine {
namespace {

synthetic_options preset(const char* name, unsigned threads, std::uint32_t shards) {
  synthetic_options o;
  o.config_text = std::string{preset_config(name).value()};
  o.threads = threads;
  o.shards = shards;
  return o;
}

std::string file_hash(const std::string& path) {
  const auto file = mapped_file::open(path);
  return file.ok() ? sha256_hex(file->bytes()) : file.error().render();
}

TEST(synthetic_checkpoint, has_the_published_bytes_of_every_file_and_tensor) {
  std::ifstream in{std::string{DI_SOURCE_DIR} + "/tests/golden/data/tiny.sha256.json"};
  const auto golden = nlohmann::json::parse(in);
  const di::testing::temporary_directory dir{"tiny_hash"};
  std::uint64_t last = 0;
  auto options = preset("tiny", 2, 1);
  options.progress = [&last](std::uint64_t done, std::uint64_t total) {
    EXPECT_LE(done, total);
    EXPECT_GE(done, last);
    last = done;
  };
  const auto made = write_synthetic(options, dir.path());
  ASSERT_TRUE(made.ok()) << made.error().render();
  EXPECT_GT(last, 0U);
  EXPECT_EQ(made->files.size(), golden["files"].size());
  for (const auto& [name, file] : golden["files"].items()) {
    EXPECT_EQ(file_hash(dir.path() + "/" + name), file["sha256"]) << name;
    EXPECT_EQ(std::filesystem::file_size(dir.path() + "/" + name), file["bytes"]) << name;
  }
  const auto c = checkpoint::open(dir.path());
  ASSERT_TRUE(c.ok()) << c.error().render();
  ASSERT_EQ(c->tensors().size(), golden["tensors"].size());
  for (const auto& t : c->tensors()) {
    const auto& want = golden["tensors"][t.name];
    EXPECT_EQ(sha256_hex({t.view.data, static_cast<std::size_t>(t.view.bytes)}), want["sha256"])
        << t.name;
  }
}

TEST(synthetic_checkpoint, does_not_depend_on_threads_nor_its_tensors_on_shards) {
  const di::testing::temporary_directory one{"tiny_one"};
  const di::testing::temporary_directory three{"tiny_three"};
  ASSERT_TRUE(write_synthetic(preset("tiny-vl", 1, 1), one.path()).ok());
  ASSERT_TRUE(write_synthetic(preset("tiny-vl", 3, 3), three.path()).ok());
  const auto a = checkpoint::open(one.path()).value();
  const auto b = checkpoint::open(three.path());
  ASSERT_TRUE(b.ok()) << b.error().render();
  EXPECT_EQ(b->files().size(), 3U);
  EXPECT_EQ(a.hash(), b->hash()) << "the hash is of the model, not of its files";
  ASSERT_EQ(a.tensors().size(), b->tensors().size());
  for (const auto& t : a.tensors())
    EXPECT_EQ(std::memcmp(t.view.data, b->find(t.name)->data, t.view.bytes), 0) << t.name;
}

// Hashes of the reference generator's files (make_checkpoint.py --preset tiny-vl --seed 7 --shards
// 3).
TEST(synthetic_checkpoint, with_vision_and_shards_has_the_bytes_of_the_reference_generator) {
  const di::testing::temporary_directory dir{"tiny_vl_hash"};
  auto options = preset("tiny-vl", 2, 3);
  options.seed = 7;
  ASSERT_TRUE(write_synthetic(options, dir.path()).ok());
  EXPECT_EQ(file_hash(dir.path() + "/model-00001-of-00003.safetensors"),
            "98a0751f174c925914bc99b3769c1d55ec1399bb7fe9fa46ca64ed82d1d2c53b");
  EXPECT_EQ(file_hash(dir.path() + "/model-00002-of-00003.safetensors"),
            "2b68dbf7947afd614222b16f7e6a36369f23cb2ac68a10789b338d492db093c0");
  EXPECT_EQ(file_hash(dir.path() + "/model-00003-of-00003.safetensors"),
            "3303734080c3c27181f078892a65ab66673dad26ee01f766c6a7f8075f0fd215");
  EXPECT_EQ(file_hash(dir.path() + "/model.safetensors.index.json"),
            "f75edd28ad67b7070f12308e567e36c408a1ecc366337775db17371fadf64c7b");
}

TEST(synthetic_checkpoint, of_another_seed_has_another_hash) {
  const di::testing::temporary_directory one{"tiny_seed1"};
  const di::testing::temporary_directory two{"tiny_seed2"};
  auto options = preset("tiny", 2, 1);
  ASSERT_TRUE(write_synthetic(options, one.path()).ok());
  options.seed = 2;
  ASSERT_TRUE(write_synthetic(options, two.path()).ok());
  EXPECT_NE(checkpoint::open(one.path())->hash(), checkpoint::open(two.path())->hash());
}

// The hashes are those of the reference generator's files (make_checkpoint.py --preset small, seed
// 1, one shard, compared once). 485 MB are too slow for every run: DI_TEST_SMALL=1 runs it.
TEST(synthetic_checkpoint, of_preset_small_has_the_bytes_of_the_reference_generator) {
  if (std::getenv("DI_TEST_SMALL") == nullptr)
    GTEST_SKIP() << "set DI_TEST_SMALL=1 to write and hash 485 MB";
  const di::testing::temporary_directory dir{"small_hash"};
  ASSERT_TRUE(write_synthetic(preset("small", 2, 1), dir.path()).ok());
  EXPECT_EQ(file_hash(dir.path() + "/model-00001-of-00001.safetensors"),
            "e935cfe1c670a7f91448aef21eaaa24f77004bfb18dfca281260afa125be8016");
  EXPECT_EQ(file_hash(dir.path() + "/model.safetensors.index.json"),
            "18b325aeeb4080818b34cfa330e21f2c6d57c620a470db575b452f7e58d28bc5");
  EXPECT_EQ(file_hash(dir.path() + "/engram_meta.json"),
            "b8bbbbf6a7b9783914012b2845ac6ddc5796b90203d6b65003a810ecac4f3dab");
}

} // namespace
} // namespace di::engine
