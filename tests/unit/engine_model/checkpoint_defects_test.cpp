// SPDX-License-Identifier: Apache-2.0
// Each defect of a checkpoint directory, by its place and numbers. The directory is the preset tiny
// with data of zeros; each test changes one thing.
#include "engine/model/checkpoint.hpp"
#include "engine/model/synthetic.hpp"
#include "tests/support/temporary_directory.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace di::engine {
namespace {

using nlohmann::ordered_json;

constexpr const char* shard1 = "model-00001-of-00002.safetensors";
constexpr const char* shard2 = "model-00002-of-00002.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

class checkpoint_defects : public ::testing::Test {
protected:
  checkpoint_defects() : dir_{"defects"} {
    synthetic_options o;
    o.config_text = std::string{preset_config("tiny").value()};
    o.shards = 2;
    EXPECT_TRUE(write_synthetic_headers(o, dir_.path()).ok());
  }

  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }

  std::string read(const std::string& name) const {
    std::ifstream in{path(name), std::ios::binary};
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream{path(name), std::ios::binary} << text;
  }
  void replace(const std::string& name, std::string_view from, std::string_view to) const {
    auto text = read(name);
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write(name, text.replace(at, from.size(), to));
  }
  /// Header text of a shard without its padding.
  std::string header(const std::string& name) const {
    const auto text = read(name);
    std::uint64_t length = 0;
    std::memcpy(&length, text.data(), 8);
    return text.substr(8, length);
  }
  /// Replaces a shard's header; the data stay zeros of the given size.
  void set_header(const std::string& name, std::string text, std::uint64_t data_bytes) const {
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    std::string prefix(8, '\0');
    std::memcpy(prefix.data(), &length, 8);
    write(name, prefix + text);
    std::filesystem::resize_file(path(name), 8 + length + data_bytes);
  }
  std::uint64_t data_bytes(const std::string& name) const {
    return std::filesystem::file_size(path(name)) - 8 - header(name).size();
  }
  void edit_header(const std::string& name, std::string_view from, std::string_view to) const {
    const auto data = data_bytes(name);
    auto text = header(name);
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    set_header(name, text.replace(at, from.size(), to), data);
  }

  /// The defects without the directory's name.
  std::string defects() const {
    const auto c = checkpoint::open(dir_.path());
    if (c.ok())
      return "none";
    auto text = c.error().render();
    const auto at = text.find(dir_.path() + ": ");
    return at == std::string::npos ? text : text.erase(at, dir_.path().size() + 2);
  }

  std::string first_defect() const {
    const auto text = defects();
    return text.substr(0, text.find('\n'));
  }

  di::testing::temporary_directory dir_;
};

TEST_F(checkpoint_defects, are_none_in_what_the_writer_made) {
  EXPECT_EQ(defects(), "none");
}

TEST_F(checkpoint_defects, name_a_missing_tensor) {
  // A renamed tensor is missing under its own name and unexpected under the new one.
  edit_header(shard1, "\"layers.1.attn.kv_norm.weight\"", "\"layers.1.attn.kw_norm.weight\"");
  EXPECT_EQ(defects(),
            "not_found: model.safetensors.index.json: tensor layers.1.attn.kv_norm.weight: "
            "expected in model-00001-of-00002.safetensors, found in no shard\n"
            "model.safetensors.index.json: tensor layers.1.attn.kw_norm.weight: expected in "
            "model-00001-of-00002.safetensors, found no entry\n"
            "model.safetensors.index.json: tensor layers.1.attn.kv_norm.weight: expected BF16 "
            "[64], found none\n"
            "model-00001-of-00002.safetensors: tensor layers.1.attn.kw_norm.weight: expected no "
            "such tensor, found BF16 [64]");
}

TEST_F(checkpoint_defects, name_shapes_expected_and_found) {
  edit_header(shard1, R"("layers.0.attn.wq_a.weight":{"dtype":"F8_E4M3","shape":[96,256])",
              R"("layers.0.attn.wq_a.weight":{"dtype":"F8_E4M3","shape":[256,96])");
  EXPECT_EQ(defects(), "bad_shape: model-00001-of-00002.safetensors: tensor "
                       "layers.0.attn.wq_a.weight: expected F8_E4M3 [96, 256], found F8_E4M3 [256, "
                       "96]");
}

TEST_F(checkpoint_defects, name_types_expected_and_found) {
  edit_header(shard1, R"("layers.0.attn.wq_a.weight":{"dtype":"F8_E4M3")",
              R"("layers.0.attn.wq_a.weight":{"dtype":"I8")");
  EXPECT_EQ(defects(), "bad_shape: model-00001-of-00002.safetensors: tensor "
                       "layers.0.attn.wq_a.weight: expected F8_E4M3 [96, 256], found I8 [96, 256]");
}

TEST_F(checkpoint_defects, do_not_count_u8_for_packed_codes_and_scales) {
  edit_header(shard1, R"("layers.0.ffn.experts.3.w1.weight":{"dtype":"I8")",
              R"("layers.0.ffn.experts.3.w1.weight":{"dtype":"U8")");
  edit_header(shard1, R"("layers.0.ffn.experts.3.w1.scale":{"dtype":"F8_E8M0")",
              R"("layers.0.ffn.experts.3.w1.scale":{"dtype":"U8")");
  EXPECT_EQ(defects(), "none");
}

TEST_F(checkpoint_defects, name_the_file_of_a_header_defect) {
  edit_header(shard2, R"("dtype":"F32")", R"("dtype":"F99")");
  EXPECT_EQ(first_defect(),
            "bad_format: model-00002-of-00002.safetensors: tensor layers.5.attn.attn_sink: dtype: "
            "expected F8_E4M3, F8_E8M0, I8, U8, BF16, F32 or I32, found F99");
}

TEST_F(checkpoint_defects, name_truncated_data) {
  std::filesystem::resize_file(path(shard2), std::filesystem::file_size(path(shard2)) - 1);
  const auto text = defects();
  EXPECT_NE(text.find("bad_format: model-00002-of-00002.safetensors: tensor "), std::string::npos);
  EXPECT_NE(
      text.find(fmt::format("expected a range inside the {} bytes of data", data_bytes(shard2))),
      std::string::npos)
      << text;
}

TEST_F(checkpoint_defects, name_an_absent_shard) {
  std::filesystem::remove(path(shard2));
  EXPECT_EQ(defects(), "not_found: model.safetensors.index.json: expected shard "
                       "model-00002-of-00002.safetensors, found no such file")
      << "its tensors are not reported one by one";
}

TEST_F(checkpoint_defects, name_a_tensor_that_the_index_puts_elsewhere) {
  replace(index_name, R"("norm.weight":"model-00001)", R"("norm.weight":"model-00002)");
  EXPECT_EQ(defects(),
            "bad_format: model.safetensors.index.json: tensor norm.weight: expected in "
            "model-00002-of-00002.safetensors, found in model-00001-of-00002.safetensors");
}

TEST_F(checkpoint_defects, name_a_tensor_that_the_index_does_not_list) {
  replace(index_name, R"(,"norm.weight":"model-00001-of-00002.safetensors")", "");
  EXPECT_EQ(defects(), "bad_format: model.safetensors.index.json: tensor norm.weight: expected in "
                       "model-00001-of-00002.safetensors, found no entry");
}

TEST_F(checkpoint_defects, name_files_that_leave_the_directory) {
  replace(index_name, R"("norm.weight":"model-00001-of-00002.safetensors")",
          R"("norm.weight":"../../etc/passwd")");
  EXPECT_EQ(defects(),
            "bad_format: model.safetensors.index.json: weight_map: tensor norm.weight: expected a "
            "file name without folders, found \"../../etc/passwd\"");
}

TEST_F(checkpoint_defects, name_bad_json_of_the_index) {
  write(index_name, R"({"weight_map":{"a":"b","a":"c"}})");
  EXPECT_EQ(defects(),
            "duplicate: model.safetensors.index.json: key \"a\" occurs twice in one object");
  write(index_name, R"({"weights":{}})");
  EXPECT_EQ(defects(),
            "bad_format: model.safetensors.index.json: expected an object with an object "
            "weight_map, found none");
}

TEST_F(checkpoint_defects, name_a_tensor_that_two_shards_hold) {
  auto text = header(shard2);
  const auto end = text.find_last_of('}');
  const auto data = data_bytes(shard2);
  text.replace(end, 1,
               fmt::format(R"(,"model.norm.weight":{{"dtype":"BF16","shape":[256],)"
                           R"("data_offsets":[{0},{1}]}}}})",
                           data, data + 512));
  ASSERT_EQ(data % 2, 0U) << "the new tensor must be aligned, or there is a second defect";
  set_header(shard2, text, data + 512);
  replace(index_name, R"("norm.weight":)",
          R"("model.norm.weight":"model-00002-of-00002.safetensors","norm.weight":)");
  EXPECT_EQ(defects(), "duplicate: model-00002-of-00002.safetensors: tensor norm.weight: expected "
                       "once, found in model-00001-of-00002.safetensors too");
}

TEST_F(checkpoint_defects, name_files_of_the_engram_and_their_sizes) {
  write("engram_token_map.i32", std::string(4092, '\0'));
  EXPECT_EQ(defects(), "bad_format: engram_token_map.i32: expected 4096 bytes, 4 per token id, "
                       "found 4092");
  std::string map(4096, '\0');
  map[40] = 1;
  map[41] = 2; // class 513 of 512
  write("engram_token_map.i32", map);
  EXPECT_EQ(defects(), "bad_format: engram_token_map.i32: token id 10: expected a class in 0..511, "
                       "found 513");
  std::filesystem::remove(path("engram_token_map.i32"));
  EXPECT_EQ(defects(), "not_found: engram_token_map.i32: expected 1024 little-endian int32 (class "
                       "of every token id), found no file");
}

TEST_F(checkpoint_defects, name_engram_constants_that_contradict_the_config) {
  replace("engram_meta.json", "1009", "1013");
  EXPECT_EQ(defects(), "bad_config: engram_meta.json: primes: expected the numbers that follow "
                       "from config.json, "
                       "[[[1009,1013],[1019,1021],[1031,1033]],[[1039,1049],[1051,1061],[1063,1069]"
                       "]], found others");
  std::filesystem::remove(path("engram_meta.json"));
  EXPECT_EQ(defects(), "none") << "the constants are computed anyhow";
}

TEST_F(checkpoint_defects, name_every_contradiction_of_the_config) {
  replace("config.json", "\"hidden_size\": 256", "\"hidden_size\": 255");
  EXPECT_EQ(defects(), "bad_config: config.json: hidden_size: expected a multiple of 32 (block of "
                       "the quantised formats), found 255");
}

TEST_F(checkpoint_defects, name_a_config_that_wants_far_more_experts_than_are_stored) {
  replace("config.json", "\"n_routed_experts\": 16", "\"n_routed_experts\": 8000");
  EXPECT_EQ(defects(), "bad_config: config.json: expected 384096 tensors of routed experts, found "
                       "1212 tensors in all");
}

TEST_F(checkpoint_defects, name_a_directory_without_files) {
  EXPECT_EQ(checkpoint::open("/no/such/dir").error().render(),
            "not_found: /no/such/dir: /no/such/dir/config.json: open: No such file or directory");
  std::filesystem::remove(path(index_name));
  EXPECT_EQ(defects(), "not_found: " + dir_.path()
                           + ": expected model.safetensors.index.json or model.safetensors, found "
                             "neither");
}

TEST_F(checkpoint_defects, are_all_reported_at_once) {
  edit_header(shard1, R"("layers.0.attn.wq_a.weight":{"dtype":"F8_E4M3")",
              R"("layers.0.attn.wq_a.weight":{"dtype":"I8")");
  std::filesystem::remove(path("engram_token_map.i32"));
  const auto text = defects();
  EXPECT_NE(text.find("layers.0.attn.wq_a.weight"), std::string::npos);
  EXPECT_NE(text.find("engram_token_map.i32"), std::string::npos);
}

TEST_F(checkpoint_defects, are_not_the_prefixes_of_a_resaved_model) {
  for (const auto* name : {shard1, shard2}) {
    const auto data = data_bytes(name);
    const auto old = ordered_json::parse(header(name));
    ordered_json renamed;
    for (const auto& [key, value] : old.items())
      renamed[key == "__metadata__"  ? key
              : key == "head.weight" ? "lm_head.weight"
                                     : "model." + key] = value;
    set_header(name, renamed.dump(), data);
  }
  ordered_json index = ordered_json::parse(read(index_name));
  ordered_json map;
  for (const auto& [key, value] : index["weight_map"].items())
    map[key == "head.weight" ? "lm_head.weight" : "model." + key] = value;
  index["weight_map"] = map;
  write(index_name, index.dump());
  EXPECT_EQ(defects(), "none");
  EXPECT_NE(checkpoint::open(dir_.path())->find("head.weight"), nullptr);
}

TEST_F(checkpoint_defects, are_not_a_total_that_does_not_add_up) {
  replace(index_name, "14413498", "14413499");
  const auto c = checkpoint::open(dir_.path());
  ASSERT_TRUE(c.ok());
  ASSERT_EQ(c->notes().size(), 1U);
  EXPECT_EQ(c->notes()[0], "model.safetensors.index.json: total_size 14413499 differs from the "
                           "14413498 bytes of all tensors");
}

} // namespace
} // namespace di::engine
